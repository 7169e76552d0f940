use super::*;
use crate::positions::{Former, Grants, Marks, Resume};
use ctrlmesh_policy::from_documents;

fn resource(name: &str) -> GroupResource {
    GroupResource::new("", name)
}

fn pods() -> GroupResource {
    resource("pods")
}

/// A policy that limits each of these resources to a `shard` label.
fn policy(limits: &[(&str, &str)]) -> Arc<Sharding> {
    let limit = |(resource, shard): &(&str, &str)| {
        format!(
            "{{relateResources: [{{apiGroups: [\"\"], resources: [\"{resource}\"]}}], \
             selector: {{matchLabels: {{shard: {shard}}}}}}}"
        )
    };
    let limits: Vec<_> = limits.iter().map(limit).collect();
    let text = format!(
        "apiVersion: ctrlmesh.kusionstack.io/v1alpha1\nkind: ShardingConfig\n\
         metadata: {{name: blue}}\n\
         spec: {{selector: {{matchLabels: {{app: op}}}}, limits: [{}]}}\n",
        limits.join(", ")
    );
    let draft = from_documents(text.as_bytes(), "blue", None).unwrap();
    draft.resolve(None).unwrap().sharding
}

fn a() -> Arc<Sharding> {
    policy(&[("pods", "a")])
}

fn b() -> Arc<Sharding> {
    policy(&[("pods", "b")])
}

fn at(rv: u64) -> Resume {
    Resume::Number(rv)
}

const ONE: Epoch = Epoch::new(1);
const TWO: Epoch = Epoch::new(2);
const THREE: Epoch = Epoch::new(3);

/// The past of a process that ended under the policy this one starts with.
fn after_the_same() -> Past {
    Past { had_process: true, ..Past::none() }
}

#[test]
fn t23_what_was_shown_before_a_change_cannot_be_resumed() {
    let positions = Positions::new(Past::none(), a());
    let kept = positions.keep(&pods(), ONE, &a());
    kept.show(at(100), ONE);
    assert!(kept.may_resume(at(100)) && kept.may_resume(at(7)));
    positions.change(TWO, &b());
    assert!(!kept.may_resume(at(100)) && !kept.may_resume(at(7)));
    kept.show(at(101), TWO);
    assert!(kept.may_resume(at(101)), "the new scope's own position");
}

#[test]
fn t23_an_old_request_that_ends_late_raises_the_floor() {
    for is_kept_before in [true, false] {
        let positions = Positions::new(Past::none(), a());
        if is_kept_before {
            let _ = positions.keep(&pods(), ONE, &a());
        }
        positions.change(TWO, &b());
        positions.keep(&pods(), ONE, &a()).show(at(150), ONE);
        assert!(!positions.of(&pods()).may_resume(at(150)));
        assert!(positions.of(&pods()).may_resume(at(151)));
    }
}

/// The policy changes there and back unseen: only positions shown between are of another scope.
#[test]
fn t23_a_request_of_a_policy_that_came_and_went_raises_the_floor() {
    let positions = Positions::new(Past::none(), a());
    positions.change(TWO, &b());
    positions.change(THREE, &a());
    positions.keep(&pods(), THREE, &a()).show(at(100), THREE);
    assert!(positions.of(&pods()).may_resume(at(100)));
    positions.keep(&pods(), TWO, &b()).show(at(110), TWO);
    assert!(!positions.of(&pods()).may_resume(at(110)));
    assert!(positions.of(&pods()).may_resume(at(111)));
}

#[test]
fn unaffected_resources_keep_their_floor() {
    let nodes = resource("nodes");
    let positions = Positions::new(Past::none(), a());
    positions.keep(&pods(), ONE, &a()).show(at(100), ONE);
    positions.keep(&nodes, ONE, &a()).show(at(100), ONE);
    positions.change(TWO, &b());
    assert!(!positions.of(&pods()).may_resume(at(100)));
    assert!(positions.of(&nodes).may_resume(at(100)));
}

/// Namely an object's own version in initial events, a list `Exact` at a version, a lagging cache.
#[test]
fn t76_no_version_that_is_shown_settles_an_unknown_past() {
    let positions = Positions::new(Past::unknown(), a());
    let kept = positions.keep(&pods(), ONE, &a());
    assert!(!kept.may_resume(at(u64::MAX - 1)) && !kept.may_resume(Resume::Opaque));
    kept.show(at(100), ONE);
    assert!(!kept.may_resume(at(100)) && !kept.may_resume(at(u64::MAX - 1)));
    kept.settle(kept.question().unwrap(), at(300));
    assert!(!kept.may_resume(at(300)) && !kept.may_resume(Resume::Opaque));
    assert!(kept.may_resume(at(301)));
    assert_eq!(kept.question(), None, "taken once");
}

#[test]
fn t76_a_version_that_was_asked_for_under_another_policy_settles_too() {
    for is_settled_before in [true, false] {
        let positions = Positions::new(after_the_same(), a());
        let kept = positions.keep(&pods(), ONE, &a());
        let question = kept.question().unwrap();
        assert!(kept.may_resume(at(7)), "under the policy of before nothing is refused");
        if is_settled_before {
            kept.settle(question, at(300));
            assert!(kept.may_resume(at(7)));
        }
        positions.change(TWO, &b());
        if !is_settled_before {
            assert!(!kept.may_resume(at(u64::MAX - 1)));
            kept.settle(question, at(300));
        }
        assert!(!kept.may_resume(at(300)) && kept.may_resume(at(301)));
    }
}

#[test]
fn t76_an_api_that_has_no_comparable_versions_settles_nothing() {
    let positions = Positions::new(Past::unknown(), a());
    let kept = positions.keep(&pods(), ONE, &a());
    kept.settle(kept.question().unwrap(), Resume::Opaque);
    assert_eq!(kept.question(), None, "it is not asked again");
    assert!(!kept.may_resume(at(u64::MAX - 1)) && !kept.may_resume(Resume::Opaque));
}

#[test]
fn t44_positions_that_are_not_read_count_as_any() {
    let positions = Positions::new(Past::none(), a());
    let kept = positions.keep(&pods(), ONE, &a());
    kept.show_unread(ONE);
    assert!(kept.may_resume(at(100)) && kept.question().is_none(), "the scope is the same");
    positions.change(TWO, &b());
    assert!(!kept.may_resume(at(100)));
    let question = kept.question().unwrap();
    kept.show_unread(ONE);
    kept.settle(question, at(50));
    assert!(!kept.may_resume(at(100)), "asked before the last was shown");
    kept.settle(kept.question().unwrap(), at(100));
    assert!(!kept.may_resume(at(100)) && kept.may_resume(at(101)));
    kept.show_unread(ONE);
    assert!(!kept.may_resume(at(101)), "an old request that ends late");
    kept.show_unread(TWO);
    assert!(!kept.may_resume(at(101)), "which another does not undo");
}

#[test]
fn t23_what_cannot_be_compared_is_resumed_only_before_any_change() {
    let positions = Positions::new(Past::none(), a());
    let kept = positions.keep(&pods(), ONE, &a());
    kept.show(Resume::Opaque, ONE);
    assert!(kept.may_resume(Resume::Opaque) && kept.question().is_none());
    positions.change(TWO, &b());
    assert!(!kept.may_resume(Resume::Opaque) && !kept.may_resume(at(1)));
    assert_eq!(positions.past().floors[&pods()], Floor::Unknown);
}

#[test]
fn t23_a_list_of_the_present_scope_may_be_resumed_at_the_floor_itself() {
    let positions = Positions::new(Past::none(), a());
    let pods = positions.keep(&pods(), ONE, &a());
    let mut grants = Grants::default();
    pods.show(at(100), ONE);
    grants.give(7, at(100), ONE, &pods);
    positions.change(TWO, &b());
    assert!(!grants.resume(7, at(100), TWO, &pods), "a list of the old scope");
    grants.give(7, at(100), TWO, &pods);
    assert!(grants.resume(7, at(100), TWO, &pods));
    assert!(!grants.resume(8, at(100), TWO, &pods), "another collection");
    assert!(!grants.resume(7, at(99), TWO, &pods), "another position");
}

/// The list of one client is no way for another of its connection.
#[test]
fn t23_a_list_lets_nobody_resume_who_may_hold_an_old_one() {
    let positions = Positions::new(Past::none(), a());
    let pods = positions.keep(&pods(), ONE, &a());
    pods.show(at(100), ONE);
    let mut grants = Grants::default();
    grants.give(7, at(100), ONE, &pods);
    positions.change(TWO, &b());
    for _ in 0..3 {
        grants.give(7, at(100), TWO, &pods);
        assert!(!grants.resume(7, at(100), TWO, &pods), "it may be the first client");
    }
    // Both have been refused: a client that lists now has the present scope.
    assert!(!grants.resume(7, at(100), TWO, &pods));
    grants.give(7, at(100), TWO, &pods);
    assert!(grants.resume(7, at(100), TWO, &pods));
}

#[test]
fn t23_a_watch_that_was_brought_over_keeps_nobody_from_resuming() {
    for is_brought_over in [true, false] {
        let positions = Positions::new(Past::none(), a());
        let pods = positions.keep(&pods(), ONE, &a());
        pods.show(at(100), ONE);
        let mut grants = Grants::default();
        // A client that listed on another connection.
        assert!(grants.resume(7, at(101), ONE, &pods));
        positions.change(TWO, &b());
        if is_brought_over {
            grants.bring_over(7, TWO, &pods);
        }
        grants.give(7, at(100), TWO, &pods);
        assert_eq!(grants.resume(7, at(100), TWO, &pods), is_brought_over);
    }
}

#[test]
fn t23_of_a_collection_that_was_forgotten_somebody_may_hold_an_old_list() {
    let positions = Positions::new(Past::none(), a());
    let pods = positions.keep(&pods(), ONE, &a());
    pods.show(at(100), ONE);
    let mut grants = Grants::default();
    (0..2000).for_each(|collection| grants.give(collection, at(100), ONE, &pods));
    positions.change(TWO, &b());
    grants.give(7, at(100), TWO, &pods);
    assert!(!grants.resume(7, at(100), TWO, &pods));
    assert!(!grants.resume(7, at(100), TWO, &pods));
    grants.give(7, at(100), TWO, &pods);
    assert!(grants.resume(7, at(100), TWO, &pods));
}

/// The positions of the pod's next process, under the policy in force.
fn next(positions: &Positions) -> Positions {
    let present = Arc::clone(&positions.known.read().present);
    Positions::new(Past { had_process: true, ..positions.past() }, present)
}

#[test]
fn floors_outlive_the_process() {
    for past in [Past::none(), Past::unknown()] {
        let is_unknown = past.unknown;
        let positions = Positions::new(past, a());
        let kept = positions.keep(&pods(), ONE, &a());
        kept.show(at(100), ONE);
        positions.change(TWO, &b());
        if let Some(question) = kept.question() {
            kept.settle(question, at(100));
        }
        let next = next(&positions);
        assert_eq!(next.past().floors, positions.past().floors, "also before anybody asked");
        assert!(!next.of(&pods()).may_resume(at(100)));
        assert!(next.of(&pods()).may_resume(at(101)));
        assert_eq!(next.of(&resource("nodes")).may_resume(at(100)), !is_unknown);
    }
}

/// The next process starts with the policy of the last one, which then changes.
#[test]
fn t76_a_change_covers_what_the_last_process_showed() {
    let secrets = resource("secrets");
    for is_kept_before in [false, true] {
        let last = Positions::new(Past::none(), a());
        last.keep(&pods(), ONE, &a()).show(at(50), ONE);
        last.change(TWO, &b());
        let past = Past { had_process: true, ..last.past() };
        last.of(&pods()).show(at(100), TWO);
        last.keep(&secrets, TWO, &b()).show(at(100), TWO);

        let next = Positions::new(past, b());
        assert!(next.of(&pods()).may_resume(at(100)) && !next.of(&pods()).may_resume(at(50)));
        if is_kept_before {
            next.keep(&pods(), ONE, &b()).show(at(60), ONE);
        }
        next.change(TWO, &a());
        assert!(!next.of(&pods()).may_resume(at(100)));
        assert!(next.of(&secrets).may_resume(at(100)), "another resource's scope has changed");

        let third = Positions::new(Past { had_process: true, ..next.past() }, a());
        assert!(!third.of(&pods()).may_resume(at(100)));

        let kept = next.keep(&pods(), TWO, &a());
        kept.settle(kept.question().unwrap(), at(120));
        assert!(!kept.may_resume(at(120)) && kept.may_resume(at(121)));
        next.change(THREE, &b());
        assert!(kept.may_resume(at(121)), "shown by no one");
    }
}

#[test]
fn a_change_there_and_back_that_nobody_saw_is_none() {
    let positions = Positions::new(after_the_same(), a());
    positions.change(TWO, &b());
    assert!(!positions.of(&pods()).may_resume(at(100)));
    positions.change(THREE, &a());
    assert!(positions.of(&pods()).may_resume(at(100)));
    assert!(!next(&positions).past().unknown);
}

#[test]
fn nothing_is_kept_of_what_was_never_shown() {
    let positions = Positions::new(Past::none(), a());
    for n in 0..MAX_RESOURCES + 10 {
        let _ = positions.of(&resource(&format!("r{n}")));
    }
    let long = resource(&"r".repeat(254));
    let _ = positions.keep(&long, ONE, &a());
    let _ = positions.keep(&pods(), ONE, &a());
    positions.change(TWO, &b());
    assert_eq!(positions.known.read().by_resource.len(), 1);
    let past = Past { former: Former::default(), ..positions.past() };
    assert_eq!(past, Past::none(), "kept, and shown nothing");
}

#[test]
fn more_resources_than_are_told_apart_share_one_position() {
    let positions = Positions::new(Past::none(), a());
    for n in 0..MAX_RESOURCES + 10 {
        positions.keep(&resource(&format!("r{n}")), ONE, &a()).show(at(100), ONE);
    }
    assert_eq!(positions.known.read().by_resource.len(), MAX_RESOURCES);
    positions.change(TWO, &b());
    assert!(!positions.of(&resource("one-more")).may_resume(at(100)));
    assert!(positions.of(&resource("r1")).may_resume(at(100)));
}

#[test]
fn a_position_that_is_shared_has_the_floors_of_the_last_process() {
    let past = Past { floors: [(pods(), Floor::At(100))].into(), ..after_the_same() };
    let positions = Positions::new(past, a());
    assert!(!positions.of(&resource(&"r".repeat(300))).may_resume(at(50)));
}

#[test]
fn a_late_request_raises_no_floor_of_a_resource_that_the_change_left_alone() {
    let positions = Positions::new(Past::none(), a());
    positions.change(TWO, &b());
    let late = positions.keep(&resource("secrets"), ONE, &a());
    late.show(at(100), ONE);
    assert!(late.may_resume(at(100)));
}

#[test]
fn a_change_keeps_the_floors_of_resources_that_it_leaves_alone() {
    let past = Past { floors: [(resource("secrets"), Floor::At(100))].into(), ..after_the_same() };
    let positions = Positions::new(past, a());
    positions.change(TWO, &b());
    assert_eq!(positions.past().floors.get(&resource("secrets")), Some(&Floor::At(100)));
}

/// The scopes of pods under which a client may hold this position, by the value of their label.
fn former(positions: &Positions, rv: u64, to: &Sharding) -> Option<Vec<String>> {
    let former = positions.former(&pods(), &positions.of(&pods()), rv, to)?;
    let text = |sharding: &Arc<Sharding>| sharding.scope(&pods()).unwrap().text().to_owned();
    Some(former.iter().map(text).collect())
}

fn c() -> Arc<Sharding> {
    policy(&[("pods", "c")])
}

#[test]
fn a_position_is_of_each_scope_that_was_in_force_since() {
    let positions = Positions::new(Past::none(), a());
    positions.keep(&pods(), ONE, &a()).show(at(100), ONE);
    positions.change(TWO, &b());
    assert_eq!(former(&positions, 100, &b()).unwrap(), ["shard=a"]);
    assert_eq!(former(&positions, 101, &b()), None, "no one was shown it");
    positions.keep(&pods(), TWO, &b()).show(at(200), TWO);
    positions.change(THREE, &c());
    assert_eq!(former(&positions, 7, &c()).unwrap(), ["shard=a", "shard=b"]);
    assert_eq!(former(&positions, 101, &c()).unwrap(), ["shard=b"], "A was over by then");
    // A late answer of the first scope.
    positions.keep(&pods(), ONE, &a()).show(at(250), ONE);
    assert_eq!(former(&positions, 250, &c()).unwrap(), ["shard=a", "shard=b"]);
    // Back to a scope of before: what has it needs nothing.
    positions.change(Epoch::new(4), &a());
    assert_eq!(former(&positions, 100, &a()).unwrap(), ["shard=b", "shard=c"]);
    assert_eq!(former(&positions, 300, &a()), None);
    let long = GroupResource::new("", &"x".repeat(1000));
    assert_eq!(positions.former(&long, &positions.of(&long), 7, &a()), None);
}

#[test]
fn bad_position_of_more_scopes_than_are_remembered() {
    let positions = Positions::new(Past::none(), a());
    for (number, rv) in (1..=17).zip(100..) {
        let epoch = Epoch::new(number);
        let sharding = policy(&[("pods", &format!("s{number}"))]);
        positions.keep(&pods(), epoch, &sharding).show(at(rv), epoch);
        positions.change(epoch.next(), &policy(&[("pods", &format!("s{}", number + 1))]));
    }
    let to = policy(&[("pods", "s18")]);
    assert_eq!(former(&positions, 100, &to), None, "the first of seventeen is forgotten");
    assert_eq!(former(&positions, 101, &to).unwrap().len(), 16);
}

#[test]
fn bad_position_of_a_scope_that_no_process_knows() {
    let floors: Marks = [(pods(), Floor::At(50))].into();
    let forgotten = Shown { marks: floors.clone(), ..Shown::default() };
    let past = Past { floors, former: Former::new([], forgotten), ..after_the_same() };
    let positions = Positions::new(past, a());
    positions.keep(&pods(), ONE, &a()).show(at(100), ONE);
    positions.change(TWO, &b());
    assert_eq!(former(&positions, 100, &b()), None, "what was shown before is not known yet");
    let position = positions.of(&pods());
    position.settle(position.question().unwrap(), at(120));
    assert_eq!(former(&positions, 50, &b()), None);
    assert_eq!(former(&positions, 51, &b()).unwrap(), ["shard=a"]);
    assert_eq!(former(&positions, 120, &b()).unwrap(), ["shard=a"]);
    let positions = Positions::new(Past::unknown(), a());
    positions.keep(&pods(), ONE, &a()).show(at(100), ONE);
    positions.change(TWO, &b());
    assert_eq!(former(&positions, 100, &b()), None);
}

#[test]
fn a_position_is_of_each_scope_of_the_last_process() {
    let last = Positions::new(Past::none(), a());
    last.keep(&pods(), ONE, &a()).show(at(100), ONE);
    last.change(TWO, &b());
    last.keep(&pods(), TWO, &b()).show(at(200), TWO);
    // Under the same policy, what was shown at or below the floor is of the scope before it.
    let next = Positions::new(Past { had_process: true, ..last.past() }, b());
    let position = next.keep(&pods(), ONE, &b());
    assert!(!position.may_resume(at(100)) && position.may_resume(at(101)));
    assert_eq!(former(&next, 100, &b()).unwrap(), ["shard=a"]);
    // Under another, all of them may be, once it is known how high their positions are.
    let all = last.past().former.all().cloned().collect::<Vec<_>>();
    let all = all.into_iter().chain([FormerSharding { sharding: b(), shown: Shown::anything() }]);
    let past = Past { former: Former::new(all, Shown::default()), ..Past::unknown() };
    let next = Positions::new(past, c());
    let position = next.keep(&pods(), ONE, &c());
    assert_eq!(former(&next, 100, &c()), None);
    position.settle(position.question().unwrap(), at(300));
    assert_eq!(former(&next, 250, &c()).unwrap(), ["shard=a", "shard=b"]);
}

/// A resource that this process has not shown before its scope changed twice, but the last one did.
#[test]
fn a_position_of_the_last_process_is_of_its_scope_whatever_was_shown_meanwhile() {
    let positions = Positions::new(after_the_same(), a());
    positions.change(TWO, &b());
    positions.keep(&pods(), TWO, &b()).show(at(200), TWO);
    positions.change(THREE, &c());
    let position = positions.of(&pods());
    position.settle(position.question().unwrap(), at(300));
    assert_eq!(former(&positions, 100, &c()).unwrap(), ["shard=a", "shard=b"]);
    // A late answer of the first scope, where nothing had been shown of it.
    let positions = Positions::new(Past::none(), a());
    positions.change(TWO, &b());
    positions.keep(&pods(), ONE, &a()).show(at(150), ONE);
    positions.keep(&pods(), TWO, &b()).show(at(200), TWO);
    positions.change(THREE, &c());
    assert_eq!(former(&positions, 150, &c()).unwrap(), ["shard=a", "shard=b"]);
    assert_eq!(former(&positions, 151, &c()).unwrap(), ["shard=b"]);
    // The next process knows it, too.
    let next = Positions::new(Past { had_process: true, ..positions.past() }, c());
    assert_eq!(former(&next, 150, &c()).unwrap(), ["shard=a", "shard=b"]);
}

/// A scope under which this process has shown nothing of a resource, but the one before it has.
#[test]
fn a_position_of_the_process_before_the_last_is_of_its_scope() {
    let second = Positions::new(after_the_same(), a());
    second.change(TWO, &b());
    second.are_over(TWO);
    let position = second.keep(&pods(), TWO, &b());
    position.settle(position.question().unwrap(), at(300));
    assert_eq!(former(&second, 100, &b()).unwrap(), ["shard=a"]);
    second.change(THREE, &c());
    let third = Positions::new(Past { had_process: true, ..second.past() }, c());
    assert_eq!(former(&third, 100, &c()).unwrap(), ["shard=a", "shard=b"]);
}

/// A process that was killed in a change leaves what it knew of the scopes before.
#[test]
fn what_was_shown_under_scopes_that_are_over_is_known_for_good() {
    let first = Positions::new(Past::none(), a());
    first.keep(&pods(), ONE, &a()).show(at(100), ONE);
    first.change(TWO, &b());
    first.are_over(TWO);
    first.keep(&pods(), TWO, &b()).show(at(200), TWO);
    let all = first.past().former.all().cloned().collect::<Vec<_>>();
    let all = all.into_iter().chain([FormerSharding { sharding: b(), shown: Shown::anything() }]);
    let past = Past { former: Former::new(all, Shown::default()), ..Past::unknown() };
    let second = Positions::new(past, c());
    let position = second.keep(&pods(), ONE, &c());
    position.settle(position.question().unwrap(), at(300));
    assert_eq!(former(&second, 100, &c()).unwrap(), ["shard=a", "shard=b"]);
    assert_eq!(former(&second, 101, &c()).unwrap(), ["shard=b"]);
}

#[test]
fn scopes_are_not_over_while_another_change_has_begun() {
    let positions = Positions::new(Past::none(), a());
    positions.change(TWO, &b());
    positions.change(THREE, &c());
    positions.are_over(TWO);
    positions.keep(&pods(), TWO, &b()).show(at(150), TWO);
    assert_eq!(former(&positions, 150, &c()).unwrap(), ["shard=a", "shard=b"]);
    positions.are_over(THREE);
    positions.change(Epoch::new(4), &policy(&[("pods", "d")]));
    positions.keep(&pods(), THREE, &c()).show(at(160), THREE);
    assert_eq!(former(&positions, 160, &b()).unwrap(), ["shard=c"]);
}

/// Later shardings have been forgotten by then, and so has what was not parsed at first.
#[test]
fn positions_that_were_not_parsed_bar_none_for_good() {
    let positions = Positions::new(after_the_same(), a());
    positions.keep(&pods(), ONE, &a()).show_unread(ONE);
    let sharding = |number: u64| policy(&[("pods", &format!("s{number}"))]);
    for number in 2..=19 {
        let epoch = Epoch::new(number);
        positions.change(epoch, &sharding(number));
        let position = positions.keep(&pods(), epoch, &sharding(number));
        if let Some(question) = position.question() {
            position.settle(question, at(100));
        }
        position.show(at(100 + number), epoch);
        positions.are_over(epoch);
    }
    let to = sharding(19);
    assert_eq!(former(&positions, 102, &to), None, "of one that is forgotten");
    assert_eq!(former(&positions, 103, &to).unwrap().len(), 16);
}

#[test]
fn a_sharding_that_comes_and_goes_is_remembered_once() {
    let positions = Positions::new(Past::none(), a());
    for number in 2..40 {
        let to = if number % 2 == 0 { b() } else { a() };
        positions.change(Epoch::new(number), &to);
        positions.keep(&pods(), Epoch::new(number), &to).show(at(100 + number), Epoch::new(number));
    }
    assert_eq!(former(&positions, 50, &a()).unwrap(), ["shard=b"]);
    positions.change(Epoch::new(40), &c());
    assert_eq!(former(&positions, 50, &c()).unwrap(), ["shard=b", "shard=a"]);
    assert_eq!(former(&positions, 139, &c()).unwrap(), ["shard=a"]);
}
