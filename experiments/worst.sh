# Usage: sh worst.sh SAMPLES.csv
# Percentiles of the latencies in a file of samples, each the latency that so many packets do not exceed, and the 5,000 highest: worst.csv has when
# their packets were due (s) and how long they took (us).
tail -n +2 "$1" | awk -F, '$4 != ""' | sort -t, -k4,4nr > sorted
packets=$(wc -l < sorted)
echo due_s,latency_us > worst.csv
head -n 5000 sorted | sort -t, -k1,1n | awk -F, '{ printf "%.6f,%.3f\n", $2 / 1e9, $4 / 1e3 }' >> worst.csv
awk -F, -v packets="$packets" '
    function place(of, in_all) { return packets - int((packets * of + in_all - 1) / in_all) + 1 }
    BEGIN {
        at["p50_ns"] = place(1, 2); at["p99_ns"] = place(99, 100); at["p99_9_ns"] = place(999, 1000)
        at["p99_99_ns"] = place(9999, 10000); at["p99_999_ns"] = place(99999, 100000); at["max_ns"] = 1; at["least_of_worst_ns"] = 5000
    }
    { latency[NR] = $4 }
    NR <= 5000 { has[int($2 / 1e9)] = 1 }
    { all[int($2 / 1e9)] = 1 }
    END {
        if (packets < 5000) exit 1
        for (second in all) { seconds++; with += second in has }
        printf "{\"seconds_share\": %.4f", with / seconds
        for (name in at) printf ", \"%s\": %s", name, latency[at[name]]
        print "}"
    }' sorted
rm sorted
