#!/bin/bash
# Tries sweep.sbatch with a real Slurm: controller and node on this machine, an array of 4 jobs and their merge
# against the sweep as one process makes it, then a plan in 2 shards. Takes root, Debian's slurm-wlm and munge, and ports 16817 and 16818 of localhost.
#   docs/jobs/try-slurm.sh target/release/servetwin
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
program=$(realpath "${1:-$root/target/debug/servetwin}")
dir=$(mktemp -d "${TMPDIR:-/tmp}/try-slurm.XXXXXX")
mkdir -p "$dir/bin" "$dir/state" "$dir/spool" "$dir/munge"
ln -s "$program" "$dir/bin/servetwin"
export PATH="$dir/bin:$PATH" SLURM_CONF="$dir/slurm.conf"
pids=()
finish() {
    for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
    wait 2>/dev/null || true
    rm -rf "$dir"
}
trap finish EXIT

# The daemons, in the foreground of this script and on sockets of their own.
head -c 1024 /dev/urandom > "$dir/munge/key"
chmod 700 "$dir" "$dir/munge"
chmod 400 "$dir/munge/key"
munged --foreground --force --key-file="$dir/munge/key" --socket="$dir/munge/socket" --pid-file="$dir/munge/pid" --seed-file="$dir/munge/seed" \
    --log-file="$dir/munge/log" > "$dir/munged.out" 2>&1 &
pids+=($!)
host=$(hostname -s)
cat > "$dir/slurm.conf" <<CONF
ClusterName=try
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=16817
SlurmdPort=16818
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$dir/munge/socket
CredType=cred/munge
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/slurmd.pid
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
ReturnToService=2
NodeName=$host NodeAddr=127.0.0.1 CPUs=$(nproc)
PartitionName=try Nodes=ALL Default=YES MaxTime=INFINITE State=UP
CONF
slurmctld -D > "$dir/slurmctld.log" 2>&1 &
pids+=($!)
slurmd -D -N "$host" > "$dir/slurmd.log" 2>&1 &
pids+=($!)
for _ in $(seq 60); do
    sinfo -h -o %T 2>/dev/null | grep -q idle && break
    sleep 1
done
sinfo -h -o %T | grep -q idle || { tail -n 20 "$dir"/*.log; echo "try-slurm: the node does not come up"; exit 1; }

# An array of 4 against one process.
cd "$root"
sweep=plans/sweep-limits.toml
failed=0
SWEEP=$sweep OUT="$dir/array" sbatch --wait --array=1-4 --cpus-per-task=1 --output="$dir/job-%a.out" docs/jobs/sweep.sbatch || failed=$?
cat "$dir"/job-*.out
[ "$failed" = 0 ]
servetwin --quiet merge "$sweep" "$dir/array" > /dev/null
servetwin --quiet sweep "$sweep" --out "$dir/whole" > /dev/null
cmp "$dir/array/results.csv" "$dir/whole/results.csv"
cmp "$dir/array/results.json" "$dir/whole/results.json"
cmp "$dir/array/results.parquet" "$dir/whole/results.parquet"
echo "sweep: merge of 4 jobs equals the whole ($(wc -l < "$dir/whole/results.csv") lines)"

# A plan in 2 shards against the whole: few candidates and requests, since every one of them is simulated.
small=(--set run.requests=300 --set hardware.instance=g6e.xlarge --set engine.kind=vllm --set engine.max_num_seqs=128 --set "engine.max_num_batched_tokens=[2048,8192]")
cat > "$dir/plan.sbatch" <<JOB
#!/bin/sh
exec servetwin plan "$root/plans/chat.toml" ${small[*]@Q} --exhaustive --draws 2 --shards 2 --out "$dir/parts"
JOB
sbatch --wait --array=1-2 --cpus-per-task=1 --output="$dir/plan-%a.out" "$dir/plan.sbatch" || failed=$?
cat "$dir"/plan-*.out
[ "$failed" = 0 ]
servetwin --quiet merge plans/chat.toml "$dir/parts" "${small[@]}" --json > "$dir/merged.json"
servetwin --quiet plan plans/chat.toml "${small[@]}" --exhaustive --draws 2 --json > "$dir/whole.json"
cmp "$dir/merged.json" "$dir/whole.json"
echo "plan: merge of 2 jobs equals the whole"
