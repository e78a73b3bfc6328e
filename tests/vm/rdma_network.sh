#!/bin/bash
# rdma_network: what the configuration says of the network: how packets are marked (dscp), over RDMA and TCP, as they are seen on
# the link; and after how long an adapter gives up on a peer that does not answer (rdma_timeout, rdma_retry_count).
# vm: --nvme 4 --nvme-size 512M --mem 3G --timeout 900
. tests/vm/lib.sh
nfs_modules
modprobe rdma_cm
link_make
address=10.97.0.1
array_make 5

cat >/tmp/marks.py <<'P'
# marks.py COMMAND...: runs it, and prints how what was sent on the link meanwhile was marked: "SENDER PROTOCOL CLASS", each once
import select, socket, subprocess, sys
s = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(3))
s.bind(("w1", 3))
s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 24)
seen = {}
p = subprocess.Popen(sys.argv[1:])
while p.poll() is None or select.select([s], [], [], 0)[0]:
    if not select.select([s], [], [], 0.2)[0]:
        continue
    b = s.recv(128)
    if b[0] >> 4 != 4:
        continue
    at = (b[0] & 15) * 4
    ports = {int.from_bytes(b[at:at + 2], "big"), int.from_bytes(b[at + 2:at + 4], "big")}
    kind = "rdma" if b[9] == 17 and 4791 in ports else "tcp" if b[9] == 6 and 2049 in ports else None
    # not the connection manager's own datagrams, which go to queue pair 1
    if kind == "tcp" or kind and int.from_bytes(b[at + 13:at + 16], "big") != 1:
        sender = "server" if socket.inet_ntoa(b[12:16]) == "10.97.0.1" else "client"
        seen[f"{sender} {kind} {b[1]}"] = seen.get(f"{sender} {kind} {b[1]}", 0) + 1
print(*sorted(seen), sep=", ")
P
load() { # DIR
	fio --name=marks --directory="$1" --rw=randrw --bs=64k --size=4M --direct=1 --verify=crc32c --verify_state_save=0 --output-format=terse >/tmp/fio.out || cat /tmp/fio.out
	stat "$1"/* >/dev/null
}
export -f load
marks() { python3 /tmp/marks.py bash -c "load $1"; }
mounts() {
	check "mount over RDMA $1" mount_rdma /mnt/r
	check "mount over TCP $1" mount_tcp /mnt/t nosharecache
}
unmounts() { umount /mnt/r /mnt/t; }
again() { # LINE OF THE SERVER'S SECTION...: the server starts anew with these
	local line
	unmounts
	server_stop
	config_write
	for line in "$@"; do sed -i "s/^server:/&\n  $line/" "$FURROW_CONFIG"; done
	server_start || finish
}

say "marks"
mounts "as it is by itself"
equal "RDMA is not marked" "$(marks /mnt/r)" "client rdma 0, server rdma 0"
equal "TCP is not marked" "$(marks /mnt/t)" "client tcp 0, server tcp 0"
again "dscp: 26"
mounts "with a DSCP"
equal "RDMA has the server's DSCP" "$(marks /mnt/r)" "client rdma 0, server rdma 104"
equal "TCP has it" "$(marks /mnt/t)" "client tcp 0, server tcp 104"
mount -t configfs none /sys/kernel/config 2>/dev/null
mkdir -p /sys/kernel/config/rdma_cm/rxe2
echo 40 >/sys/kernel/config/rdma_cm/rxe2/ports/1/default_roce_tos
again
mounts "of a client that marks its side"
equal "RDMA is marked as the client marks it" "$(marks /mnt/r)" "client rdma 40, server rdma 40"

# cut_off: under a load its client does not hear from the server any more. Dropped where it arrives: soft-RoCE takes a drop on its
# own side for a full queue, and tries at once again.
cut_off() {
	local sends
	fio --name=cut --directory=/mnt/r --rw=randread --bs=4k --size=1M --direct=1 --time_based --runtime=3600 >/dev/null 2>&1 &
	load=$!
	sends=$(metric furrow_rdma_sends_total)
	eventually 60 eval '[ "$(metric furrow_rdma_sends_total)" -gt $((sends + 300)) ]' || not_ok "reads run"
	tc qdisc add dev w2 clsact && tc filter add dev w2 ingress matchall action drop
}
heard_again() {
	tc qdisc del dev w2 clsact
	check "it goes on when the network is back $1" timeout 90 dd if=/mnt/r/cut.0.0 of=/dev/null iflag=direct bs=4k count=1
	kill $load
	wait $load 2>/dev/null
}
given_up() { grep -q 'closed peer=10.97.0.2 reason="transport retry counter exceeded"' /tmp/furrowd.log; }
say "a peer that does not answer"
cut_off
sleep 2
check "by itself an adapter is patient" eval '! given_up'
heard_again "by itself"
again "rdma_timeout: 14" "rdma_retry_count: 2"
: >/tmp/furrowd.log
mounts "with a short patience"
cut_off
check "with little patience the connection is given up" eventually 20 given_up
heard_again "with little patience"
unmounts
check_fs
finish
