#!/bin/sh
# Says what a test executable says, about tests that are named by what they do. Where it runs, the file
# `tests` has their names.
failed=0
told() { printf '{ "type": "test", "name": "%s", "event": "%s", "exec_time": %s }\n' "$1" "$2" "${3:-0.1}"; }
if [ "$1" = --list ]; then
    for name in $(cat tests); do echo "$name: test"; done
    exit
fi
for name; do
    case $name in
        passes | panics | works | late | masks | dies | hangs | leaves | prints) ;;
        *) continue ;;
    esac
    printf '{ "type": "test", "event": "started", "name": "%s" }\n' "$name"
    case $name in
        passes)
            printf 'api-server\n' >>"$CTRLMESH_TEST_CLUSTERS"
            told passes ok
            ;;
        panics)
            printf 'node\n' >>"$CTRLMESH_TEST_CLUSTERS"
            told panics failed '0.1, "stdout": "why\n"'
            failed=101
            ;;
        works)
            i=0
            while [ $i -lt 300000 ]; do i=$((i + 1)); done
            printf 'api-server\n' >>"$CTRLMESH_TEST_CLUSTERS"
            told works ok
            ;;
        late) told late ok 50 ;;
        masks)
            case $(grep SigBlk /proc/self/status) in
                *0000000000000000) told masks ok ;;
                *) told masks failed; failed=101 ;;
            esac
            ;;
        dies) echo "its last words" >&2; kill -9 $$ ;;
        hangs) setsid sleep 1000 & wait ;;
        leaves)
            setsid sleep 1000 >/dev/null 2>&1 &
            told leaves ok
            ;;
        prints)
            printf '{ "type": "test", "name": "prints", "event": "failed", "exec_time": 1, "stdout": "'
            yes 'a line\n' | tr -d '\n' | head -c 100000000
            printf '" }\n'
            yes 'an error' | head -c 10000000 >&2
            failed=101
            ;;
    esac
done
exit $failed
