#!/bin/bash
# raid_silence: how long a client hears nothing when drives are pulled: raid_faults with a clock that counts instructions, so that
# a busy machine is not taken for a busy server.
# vm: --icount --nvme 8 --nvme-size 512M --rxe --mem 4G --timeout 3000
# qemu: newer
# long: boots another QEMU (tests/vm/newer-qemu downloads it), and counting is slow
export FURROW_COUNTED=1 FURROW_LONG= FURROW_LEVELS=${FURROW_LEVELS:-5 50 6} FURROW_FIO_SEQ=${FURROW_FIO_SEQ:-16M} FURROW_FIO_RAND=${FURROW_FIO_RAND:-2M}
exec bash tests/vm/raid_faults.sh
