#!/bin/bash
# rdma_wire: the RDMA transport against a peer made of bare verbs, on soft-RoCE.
# vm: --rxe --timeout 500
build=${FURROW_BUILD:-build}
export CMOCKA_MESSAGE_OUTPUT=TAP
timeout 300 "$build/tests/rpcrdma/test_rdma_wire" && timeout 90 "$build/tests/rpcrdma/test_rdma_credits" &&
	exec timeout 100 "$build/tests/rpcrdma/test_rdma_reverse"
