use crate::{ListOptions, Query};

fn read(raw: &str) -> ListOptions<'_> {
    ListOptions::read(Query::parse(Some(raw)).expect("few pairs"))
}

#[test]
fn t46_the_first_value_of_each_option_counts() {
    for (key, first, other) in [
        ("limit", "1", "2"),
        ("timeoutSeconds", "1", "x"),
        ("continue", "", "a"),
        ("resourceVersion", "1", "0"),
        ("sendInitialEvents", "false", "true"),
        ("allowWatchBookmarks", "", "0"),
        ("shardSelector", "", "a"),
        ("includeObject", "None", "Object"),
        ("labelSelector", "a", "("),
        ("fieldSelector", "a=", "b=1"),
        ("watch", "0", "1"),
    ] {
        let alone = format!("{key}={first}");
        assert_ne!(read(&alone), read(&format!("{key}={other}")), "{key}");
        let broken =
            format!("x&{key}=%zz&%{:x}{}={first}&{key}={other}", key.as_bytes()[0], &key[1..]);
        assert_eq!(read(&broken), read(&alone), "{key}");
    }
}

#[test]
fn t10_each_boolean_is_read_in_the_api_servers_way() {
    for (word, expected) in [
        ("", true),
        ("yes", true),
        ("f", true),
        ("true", true),
        ("1", true),
        ("0", false),
        ("FALSE", false),
        ("fal%C5%BFe", false),
    ] {
        let events = format!("sendInitialEvents={word}");
        assert_eq!(read(&events).sends_initial_events, expected, "{events}");
        let bookmarks = format!("allowWatchBookmarks={word}");
        assert_eq!(read(&bookmarks).allows_bookmarks, expected, "{bookmarks}");
    }
}
