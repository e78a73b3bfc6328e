#!/bin/bash
# nfs4_replay: what NFSv4.1 owes to a call that is sent again, over RDMA: a peer made of bare verbs and a furrowd, both in the guest.
# The same cases go over TCP on the machine itself (tests/server/test_nfs4_replay.c).
# vm: --rxe --timeout 900
# long: two minutes of emulation
build=${FURROW_BUILD:-build}
export CMOCKA_MESSAGE_OUTPUT=TAP
exec "$build/tests/server/test_nfs4_replay" 10.99.0.1
