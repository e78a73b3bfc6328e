#!/bin/bash
# rdma_wire: the RDMA transport against a peer made of bare verbs, on soft-RoCE.
# vm: --rxe --timeout 400
build=${FURROW_BUILD:-build}
export CMOCKA_MESSAGE_OUTPUT=TAP
exec timeout 360 "$build/tests/rpcrdma/test_rdma_wire"
