#!/bin/sh
# Records the alerts and drops of Suricata for the corpus: record.sh SURICATA [FOLDER]. SURICATA is the program (package
# suricata) of release 8; other releases report other alerts. FOLDER (tests/data/suricata) contains NAME.rules and
# NAME.pcap.gz, made by corpus.py. The script writes NAME.alerts for each: a line `NUMBER: SID SID...` for every packet
# that matches rules, and a line with the dropped packets. Needs jq.
set -eu

if [ $# -lt 1 ] || [ $# -gt 2 ]; then
	echo "usage: record.sh SURICATA [FOLDER]" >&2
	exit 2
fi
here=$(cd "$(dirname "$0")" && pwd)
suricata=$1
data=${2:-$here/../../../tests/data/suricata}
command -v jq >/dev/null || { echo "record.sh: needs jq: apt-get install jq" >&2; exit 3; }
version=$("$suricata" -V | sed -n 's/.*version \([^ ]*\).*/\1/p')
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# These are the classes that the rules of the corpus name.
printf 'config classification: misc-activity,Misc activity,3\n' >"$work/classification"
printf 'config reference: url http://\n' >"$work/reference"
for rules in "$data"/*.rules; do
	name=$(basename "$rules" .rules)
	gunzip -c "$data/$name.pcap.gz" >"$work/$name.pcap"
	mkdir "$work/$name"
	"$suricata" -c "$here/suricata.yaml" --set classification-file="$work/classification" \
		--set reference-config-file="$work/reference" --runmode single --simulate-ips -k none \
		-S "$rules" -r "$work/$name.pcap" -l "$work/$name" >"$work/$name/said" 2>&1 ||
		{ cat "$work/$name/said" >&2; exit 1; }
	# A rule that Suricata does not load would look like a rule that matches nothing.
	if grep -E '^(E|Error)' "$work/$name/said" >&2; then
		echo "record.sh: $name: not all rules load" >&2
		exit 1
	fi
	touch "$work/$name/eve.json"
	{
		echo "# Suricata $version of $name.rules and $name.pcap.gz"
		# An alert on a reassembled packet is counted at the last fragment of that packet.
		jq -r 'select(.event_type == "alert") | "\(.pcap_cnt // .tunnel.pcap_cnt) \(.alert.signature_id)"' "$work/$name/eve.json" | sort -n -k1 -k2 |
			awk '$1 != last { if (last) print line; line = $1 ":"; last = $1 } { line = line " " $2 } END { if (last) print line }'
		jq -r 'select(.event_type == "drop") | .pcap_cnt // .tunnel.pcap_cnt' "$work/$name/eve.json" | sort -nu | tr '\n' ' ' |
			sed -n 's/^\(.*[0-9]\) *$/dropped: \1/p'
	} >"$data/$name.alerts"
	echo "$name: $(grep -c '^[0-9]' "$data/$name.alerts") packets with alerts"
done
