#!/bin/bash
# rdma_wire: the RDMA transport against a peer made of bare verbs, on soft-RoCE.
# vm: --rxe --timeout 500
build=${FURROW_BUILD:-build}
export CMOCKA_MESSAGE_OUTPUT=TAP
timeout 360 "$build/tests/rpcrdma/test_rdma_wire" && exec timeout 120 "$build/tests/rpcrdma/test_rdma_reverse"
