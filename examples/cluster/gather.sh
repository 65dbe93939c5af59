#!/usr/bin/env bash
# Copies what this node's ranks wrote in the folder FROM to TO, which all nodes see: `gather.sh FROM TO`.
# Started once a node. Each rank's files have its number in their name, so that nodes overwrite nothing of each other's.
set -euo pipefail

if (($# != 2)); then
    echo "error: gather.sh: $# words; give a folder of this node and one that all nodes see" >&2
    exit 2
fi
if [[ ! -d $1 ]]; then
    echo "error: gather.sh: no folder $1 on $(hostname): none of its ranks wrote a trace" >&2
    exit 2
fi
[[ $1 -ef $2 ]] && exit 0

# Each file comes under another name first and is renamed when it is whole: where nodes see one local folder, all of them
# copy the same files, and `cp` onto a file that another node just made fails.
to=$(cd "$2" && pwd)
cd "$1"
find . -type f -print0 | while IFS= read -r -d '' file; do
    mkdir -p "$to/$(dirname "$file")"
    part=$(mktemp "$to/$file.XXXXXX")
    cp "$file" "$part"
    chmod --reference="$file" "$part"
    mv -f "$part" "$to/$file"
done
