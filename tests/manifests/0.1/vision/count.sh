echo "$# arguments"
for word in "$@"; do printf '<%s>\n' "$word"; done
exit 3
