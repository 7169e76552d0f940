#!/bin/sh
# Says what a test executable says, about tests that are named by what they do.
failed=0
told() { printf '{ "type": "test", "name": "%s", "event": "%s", "exec_time": 0.1%s }\n' "$1" "$2" "$3"; }
for name; do
    case $name in
        passes | panics | works | dies | hangs | leaves | prints) ;;
        *) continue ;;
    esac
    printf '{ "type": "test", "event": "started", "name": "%s" }\n' "$name"
    case $name in
        passes | works) printf 'api-server\n' >>"$CTRLMESH_TEST_CLUSTERS" ;;
        panics) printf 'node\n' >>"$CTRLMESH_TEST_CLUSTERS" ;;
        dies) echo "its last words" >&2; kill -9 $$ ;;
        hangs) setsid sleep 1000 & wait ;;
        leaves) setsid sleep 1000 >/dev/null 2>&1 & ;;
        prints)
            printf '{ "type": "test", "name": "prints", "event": "failed", "exec_time": 1, "stdout": "'
            yes 'a line\n' | tr -d '\n' | head -c 100000000
            printf '" }\n'
            yes 'an error' | head -c 10000000 >&2
            failed=101
            continue
            ;;
    esac
    case $name in
        panics) failed=101; told panics failed ', "stdout": "why\n"' ;;
        works) i=0; while [ $i -lt 300000 ]; do i=$((i + 1)); done; told works ok ;;
        *) told "$name" ok ;;
    esac
done
exit $failed
