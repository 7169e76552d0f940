//! What the oracle must not let pass: streams with one mistake each.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::oracle::{
    judge::{same_as_list, same_stores, same_streams},
    rule::{Cut, Rule, Tenants},
    story::{Expected, Store, Story},
};

const SEED: u64 = 7;

fn told(kind: &str, name: &str, rv: u64, digest: &str) -> Value {
    let object = json!({
        "ns": "a-t7", "name": name, "uid": format!("uid-{name}"), "rv": rv.to_string(),
        "labels": {}, "digest": digest,
    });
    json!({ "event": "wire", "type": kind, "object": object })
}

/// A list with one object at version 10, and events.
fn stream() -> Vec<Value> {
    let listed = told("", "one", 9, "d9")["object"].clone();
    vec![
        json!({ "event": "list", "rv": "10", "continue": false, "objects": [listed] }),
        json!({ "event": "watch", "from": "10", "initialEvents": false }),
        told("ADDED", "two", 11, "d11"),
        told("MODIFIED", "one", 12, "d12"),
        told("DELETED", "two", 13, "d13"),
        told("BOOKMARK", "", 14, ""),
        told("MODIFIED", "one", 15, "d15"),
    ]
}

/// Whether the judge finds nothing wrong with a stream, next to the right one.
fn passes(ours: &[Value]) -> bool {
    let tenants = Tenants::new(SEED);
    let steady = Expected { is_steady: true, has_bookmarks: true };
    let Ok(native) = Story::read(&stream(), &tenants, steady) else { return false };
    let Ok(ours) = Story::read(ours, &tenants, steady) else { return false };
    let floor = native.listed_at.max(ours.listed_at);
    same_stores("", &native.replayed, &ours.replayed).is_ok()
        && same_streams("", floor, &native, &ours).is_ok()
}

#[test]
fn what_is_equal_passes() {
    assert!(passes(&stream()));
    // Bookmarks are no one's business.
    let mut ours = stream();
    ours.remove(5);
    assert!(passes(&ours));
    // What was told before a list is forgotten.
    let mut ours = stream();
    let listed = told("", "one", 12, "d12")["object"].clone();
    ours[0] = json!({ "event": "list", "rv": "14", "continue": false, "objects": [listed] });
    ours.drain(2..6);
    assert!(passes(&ours));
}

#[test]
fn an_event_that_is_missing_is_caught() {
    for at in [2, 3, 4, 6] {
        let mut ours = stream();
        ours.remove(at);
        assert!(!passes(&ours), "without event {at}");
    }
}

#[test]
fn an_event_too_many_is_caught() {
    for at in [2, 3, 4, 6] {
        let mut ours = stream();
        ours.insert(at, ours[at].clone());
        assert!(!passes(&ours), "event {at} twice");
    }
    let mut ours = stream();
    ours.insert(4, told("ADDED", "other", 12, "d"));
    ours.insert(5, told("DELETED", "other", 13, "d"));
    assert!(!passes(&ours), "of an object that comes and goes");
}

#[test]
fn an_object_too_many_in_a_list_is_caught() {
    let mut ours = stream();
    let other = told("", "other", 8, "d8")["object"].clone();
    ours[0]["objects"].as_array_mut().unwrap().push(other);
    assert!(!passes(&ours));
}

#[test]
fn what_is_of_another_kind_or_content_or_order_is_caught() {
    for (field, value) in [
        ("/type", json!("ADDED")),
        ("/object/digest", json!("other")),
        ("/object/uid", json!("other")),
        ("/object/rv", json!("16")),
    ] {
        let mut ours = stream();
        *ours[3].pointer_mut(field).unwrap() = value;
        assert!(!passes(&ours), "{field}");
    }
    let mut ours = stream();
    ours.swap(2, 3);
    assert!(!passes(&ours), "in another order");
}

#[test]
fn a_change_that_is_not_closed_is_caught() {
    let read = |lines: &[Value]| {
        let changing = Expected { is_steady: false, has_bookmarks: true };
        Story::read(lines, &Tenants::new(SEED), changing)
    };
    let mut ours = stream();
    let handed = [
        told("DELETED", "one", 12, "d12"),
        told("ADDED", "other", 4, "d4"),
        told("BOOKMARK", "", 14, ""),
        told("MODIFIED", "other", 15, "d15"),
    ];
    ours.splice(6.., handed);
    assert!(read(&ours).is_ok());
    for (at, what) in [(6, "what leaves"), (7, "what comes"), (8, "the bookmark")] {
        let mut ours = ours.clone();
        ours.remove(at);
        // What leaves is missed where the store is compared with a list.
        let is_caught = read(&ours).map_or(true, |story| story.replayed.len() != 1);
        assert!(is_caught, "without {what}");
    }
}

#[test]
fn a_namespace_that_moves_unnoticed_is_caught() {
    let tenants = Tenants::new(SEED);
    let cut = Cut::Ranks { ranks: BTreeSet::from(["high"]), own: "rule-1".to_owned() };
    let rule = Rule { cut, tiers: None };
    let steady = Expected { is_steady: true, has_bookmarks: true };
    let ours = Story::read(&stream(), &tenants, steady).unwrap().replayed;
    assert!(!ours.is_empty());
    let mut ranks = tenants.first_ranks();
    let is_right = |ranks: &_| {
        let shown = ours.iter().filter(|((at, _), _)| rule.has_namespace(at, ranks));
        let list: Store = shown.map(|(key, entry)| (key.clone(), entry.clone())).collect();
        same_as_list(&list, &ours).is_ok()
    };
    assert!(is_right(&ranks));
    for (rank, is_in) in [("low", false), ("rule-1", true), ("rule-2", false)] {
        ranks.insert(tenants.name("a"), rank.to_owned());
        assert_eq!(is_right(&ranks), is_in, "{rank}");
        let selector = if is_in { "at in (a,g)" } else { "at in (g)" };
        assert_eq!(rule.at_selector(&tenants, &ranks), selector, "{rank}");
    }
    ranks.remove(&tenants.name("a"));
    assert!(!is_right(&ranks), "without a rank");
}

/// A watch that comes back is brought over from each scope that its client may have.
#[test]
fn what_a_watch_is_told_again_as_it_comes_back_passes() {
    let mut back = stream();
    back.push(json!({ "event": "watch", "from": "15", "initialEvents": false }));
    let again = [told("DELETED", "two", 15, "d13"), told("ADDED", "one", 15, "d15")];
    let with = |told: &[Value]| [&back[..], told].concat();
    let changing = Expected { is_steady: false, has_bookmarks: true };
    let reads = |lines: &[Value]| Story::read(lines, &Tenants::new(SEED), changing).is_ok();
    assert!(reads(&with(&again)));
    // Not after it has told something newer, or a bookmark, and not another version.
    for first in [told("MODIFIED", "one", 16, "d16"), told("BOOKMARK", "", 16, "")] {
        assert!(!reads(&with(&[&[first], &again[..1]].concat())));
    }
    assert!(!reads(&with(&[told("ADDED", "one", 14, "d14")])));
    assert!(!reads(&[&stream()[..], &again[..1]].concat()));
}
