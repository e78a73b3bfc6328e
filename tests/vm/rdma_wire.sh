#!/bin/bash
# rdma_wire: the RDMA transport against a peer made of bare verbs, on soft-RoCE.
# vm: --rxe --timeout 550
build=${FURROW_BUILD:-build}
export CMOCKA_MESSAGE_OUTPUT=TAP
timeout 300 "$build/tests/rpcrdma/test_rdma_wire" && timeout 90 "$build/tests/rpcrdma/test_rdma_credits" &&
	timeout 100 "$build/tests/rpcrdma/test_rdma_reverse" && exec timeout 50 "$build/tests/rpcrdma/test_rdma_removal"
