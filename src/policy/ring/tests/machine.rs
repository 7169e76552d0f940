use std::{sync::Arc, time::Duration};

use super::{
    super::{
        Answer, Claim, DesiredScope, Handover, Lease, Listing, Phase, Saying, Timing, Watched,
        Write,
    },
    bits::{Bits, Layout},
};
use crate::{GroupResource, Rule};

const LAYOUT: Layout = Layout::Namespaces;
const BEGIN: Duration = Duration::from_secs(1000);

fn after(seconds: u64) -> Duration {
    BEGIN + Duration::from_secs(seconds)
}

fn wanted(ring: &str, shard: &str, cells: u8) -> DesiredScope<Bits> {
    DesiredScope {
        ring: ring.into(),
        shard: shard.into(),
        birth: (0, shard.into()),
        generation: 1,
        area: Arc::new(LAYOUT.area(cells)),
    }
}

fn lease(pod: &str, shard: Option<&str>, version: &str, claim: Claim<Bits>) -> Lease<Bits> {
    let shard = shard.map(Into::into);
    Lease { pod: pod.into(), ring: "ring".into(), shard, version: version.into(), claim }
}

fn listing(leases: &[Lease<Bits>]) -> Listing<Bits> {
    Listing { leases: leases.to_vec(), is_consistent: true }
}

fn open(ring: &Handover<Bits>) -> Option<u8> {
    ring.open().map(|area| LAYOUT.cells(area))
}

fn shown(ring: &Handover<Bits>) -> Option<u8> {
    ring.shown().map(|area| LAYOUT.cells(area))
}

/// The next write, which says something.
fn saying(ring: &mut Handover<Bits>, now: Duration) -> Saying<Bits> {
    match ring.next_write(now) {
        Some(Write::Claim(saying)) => saying,
        other => panic!("{other:?}"),
    }
}

/// The Leases that are to be watched, and whether a list is to be made.
fn reads(ring: &mut Handover<Bits>, now: Duration) -> (Option<String>, bool) {
    let watched = ring.to_watch().map(|watched| match watched {
        Watched::Handover => "ring".to_owned(),
        Watched::Own(version) => format!("own {version}"),
    });
    (watched, ring.next_read(now).is_some())
}

fn stored(version: &str) -> Answer {
    Answer::Done(Some(version.into()))
}

/// A pod of shard `a` that alone wants these cells, and has them open.
fn opened(cells: u8, timing: Timing) -> Handover<Bits> {
    let mut ring = Handover::new("me", timing);
    ring.configure(wanted("ring", "a", cells), BEGIN);
    // Two calls in all.
    assert_eq!(ring.next_read(BEGIN), None);
    let said = saying(&mut ring, BEGIN);
    assert_eq!(ring.next_read(BEGIN), None);
    assert_eq!((said.is_new, said.replaces, said.goes_with_pod), (true, None, false));
    assert_eq!(said.claim, LAYOUT.claim(cells));
    assert_eq!(open(&ring), None, "claimed, but not stored");
    ring.answered(stored("1"), BEGIN);
    assert_eq!((open(&ring), ring.phase()), (None, Phase::Waiting), "stored, but not read");
    assert_eq!(ring.next_read(BEGIN), Some("ring"));
    ring.listed(listing(&[lease("me", Some("a"), "1", LAYOUT.claim(cells))]), BEGIN);
    assert_eq!((open(&ring), ring.phase()), (Some(cells), Phase::Open));
    ring
}

fn resource() -> GroupResource {
    LAYOUT.resource(0)
}

#[test]
fn what_is_lost_is_claimed_until_nothing_is_under_way() {
    let mut ring = opened(0b11, Timing::default());
    let minute = Timing::default().longest;
    assert_eq!(ring.begin(1, &resource(), minute, BEGIN), Some(minute));
    assert_eq!(ring.begin(2, &resource(), minute, BEGIN), Some(minute));
    ring.configure(wanted("ring", "a", 0b01), after(1));
    assert_eq!((open(&ring), shown(&ring), ring.phase()), (Some(1), Some(1), Phase::Closing));
    assert_eq!(ring.next_write(after(1)), None);
    ring.end(1, after(2));
    ring.lose(2, after(2));
    assert_eq!((ring.next_write(after(2)), ring.under_way()), (None, (1, 1)));
    // Its end is unknown: its deadline, an answer after it, and two seconds.
    assert_eq!(ring.wake(after(2)), Some(after(10)), "the renewal");
    assert_eq!(saying(&mut ring, after(59)).claim, LAYOUT.claim(0b11));
    ring.answered(stored("2"), after(61));
    assert_eq!(saying(&mut ring, after(62)).claim, LAYOUT.claim(0b11));
    ring.answered(stored("3"), after(63));
    ring.tick(after(64));
    assert_eq!((ring.next_write(after(64)), ring.wake(after(64))), (None, Some(after(65))));
    ring.tick(after(65));
    let said = saying(&mut ring, after(65));
    assert_eq!((said.claim, said.replaces.as_deref()), (LAYOUT.claim(0b01), Some("3")));
    ring.answered(stored("4"), after(65));
    assert_eq!(ring.phase(), Phase::Open);
    assert_eq!(ring.next_read(after(65)), None, "nothing is gained");
}

#[test]
fn a_former_policy_keeps_its_claim_until_its_last_request_has_ended() {
    let mut ring = opened(0b11, Timing::default());
    ring.configure(wanted("ring", "a", 0b01), after(1));
    ring.begin_former(1, LAYOUT.area(0b11));
    assert_eq!((ring.phase(), ring.next_write(after(1))), (Phase::Closing, None));
    // One was given up before: its end was known long ago.
    ring.lose_within(LAYOUT.area(0b11), BEGIN.saturating_sub(Duration::from_secs(500)));
    ring.end(1, after(2));
    assert_eq!(ring.phase(), Phase::Closing, "no answer has come since its deadline");
    assert_eq!(saying(&mut ring, after(2)).claim, LAYOUT.claim(0b11));
    ring.answered(stored("2"), after(2));
    ring.tick(after(4));
    assert_eq!(saying(&mut ring, after(4)).claim, LAYOUT.claim(0b01));
    ring.answered(stored("3"), after(4));
    assert_eq!(ring.phase(), Phase::Open);
}

#[test]
fn those_whose_claims_stand_in_the_way_are_named() {
    let mut ring = opened(0b01, Timing::default());
    ring.configure(wanted("ring", "a", 0b11), after(1));
    let said = saying(&mut ring, after(1));
    assert_eq!(said.claim, LAYOUT.claim(0b11));
    ring.answered(stored("2"), after(1));
    assert_eq!(ring.next_read(after(1)), Some("ring"));
    let leases = [
        lease("me", Some("a"), "2", LAYOUT.claim(0b11)),
        lease("mate", Some("a"), "1", LAYOUT.claim(0b11)),
        lease("one", Some("b"), "1", LAYOUT.claim(0b10)),
        lease("other", Some("b"), "1", LAYOUT.claim(0b100)),
        lease("torn", None, "1", Claim::All),
    ];
    ring.listed(listing(&leases), after(1));
    assert_eq!((ring.phase(), open(&ring)), (Phase::Waiting, Some(0b01)));
    assert_eq!(ring.in_the_way(), [("one", Some("b")), ("torn", None)]);
    ring.deleted("torn", after(2));
    ring.changed(lease("one", Some("b"), "2", Claim::Nothing), after(2));
    assert_eq!((ring.phase(), open(&ring)), (Phase::Open, Some(0b11)));
    assert!(ring.in_the_way().is_empty());
}

#[test]
fn a_pod_watches_the_leases_of_others_while_it_goes_by_them() {
    let mut ring = opened(0b01, Timing::default());
    assert_eq!(ring.to_watch(), Some(Watched::Own("1")));
    // Another pod that claims the objects open here need not be seen: it waits.
    assert!(!ring.changed(lease("one", Some("b"), "5", LAYOUT.claim(0b01)), after(1)));
    // A renewal is no reason for another watch.
    saying(&mut ring, after(10));
    assert_eq!(ring.to_watch(), Some(Watched::Own("1")));
    ring.answered(stored("2"), after(10));
    assert_eq!(reads(&mut ring, after(10)), (Some("own 2".into()), false));
    // Lost objects need no other pod's Lease.
    ring.configure(wanted("ring", "a", 0), after(11));
    saying(&mut ring, after(11));
    ring.answered(stored("3"), after(11));
    assert_eq!(reads(&mut ring, after(11)), (Some("own 3".into()), false));
    // Gained objects need the other pods' Leases: by a list, and by a watch if another pod has them.
    ring.configure(wanted("ring", "a", 0b10), after(12));
    saying(&mut ring, after(12));
    ring.answered(stored("4"), after(12));
    assert_eq!(reads(&mut ring, after(12)), (None, true));
    let mine = lease("me", Some("a"), "4", LAYOUT.claim(0b10));
    let theirs = lease("one", Some("b"), "6", LAYOUT.claim(0b10));
    ring.listed(listing(&[theirs, mine]), after(12));
    assert_eq!((ring.phase(), ring.to_watch()), (Phase::Waiting, Some(Watched::Handover)));
    ring.deleted("one", after(13));
    assert_eq!((open(&ring), ring.to_watch()), (Some(0b10), Some(Watched::Own("4"))));
    // The own one is watched always.
    ring.deleted("me", after(14));
    assert_eq!((open(&ring), ring.to_watch()), (None, None));
}

#[test]
fn a_pod_goes_by_the_leases_of_others_where_two_configs_want_the_same() {
    let mut ring = opened(0b01, Timing::default());
    let mine = lease("me", Some("a"), "1", LAYOUT.claim(0b01));
    ring.see_configs(vec![wanted("ring", "b", 0b10)], after(1));
    assert_eq!(reads(&mut ring, after(1)), (Some("own 1".into()), false));
    ring.see_configs(vec![wanted("ring", "b", 0b11)], after(1));
    assert_eq!(reads(&mut ring, after(1)), (None, true));
    ring.listed(listing(std::slice::from_ref(&mine)), after(1));
    assert_eq!((ring.phase(), ring.to_watch()), (Phase::Open, Some(Watched::Handover)));
    ring.unfollowed();
    assert_eq!(reads(&mut ring, after(2)), (None, true));
    ring.listed(listing(&[mine]), after(2));
    // Drawn apart.
    ring.see_configs(Vec::new(), after(3));
    assert_eq!(reads(&mut ring, after(3)), (Some("own 1".into()), false));
    // Where silence counts, everybody's is listened for.
    let silent_after = Some(Duration::from_secs(30));
    let ring = opened(0b01, Timing { silent_after, ..Timing::default() });
    assert_eq!(ring.to_watch(), Some(Watched::Handover));
}

#[test]
fn what_two_configs_want_stays_with_the_elder_and_the_other_says_so() {
    let resources = |ring: &Handover<Bits>| {
        ring.overlaps()
            .into_iter()
            .map(|(rule, shard)| (rule, shard.to_owned()))
            .collect::<Vec<_>>()
    };
    let mut ring = Handover::new("me", Timing::default());
    let (elder, younger) = (wanted("ring", "a", 0b11), wanted("ring", "b", 0b10));
    ring.configure(younger.clone(), BEGIN);
    ring.see_configs(vec![elder, younger.clone()], BEGIN);
    assert_eq!(ring.next_write(BEGIN), None, "no one knows who has it");
    assert_eq!(ring.next_read(BEGIN), Some("ring"));
    let other = lease("other", Some("a"), "1", LAYOUT.claim(0b11));
    ring.listed(listing(&[other]), BEGIN);
    assert_eq!(resources(&ring), [(Rule::of(&resource()), "a".to_owned())]);
    // Drawn apart, there is nothing to say.
    ring.see_configs(vec![wanted("ring", "a", 0b01), younger], BEGIN);
    assert_eq!(resources(&ring), []);
}

#[test]
fn what_only_grows_is_claimed_without_closing() {
    let mut ring = opened(0b01, Timing::default());
    ring.begin(1, &resource(), Duration::from_secs(60), BEGIN);
    ring.configure(wanted("ring", "a", 0b11), after(1));
    assert_eq!(ring.phase(), Phase::Claiming);
    assert_eq!(saying(&mut ring, after(1)).claim, LAYOUT.claim(0b11));
}

#[test]
fn a_lease_that_cannot_be_read_claims_all() {
    let mut ring = opened(0b01, Timing::default());
    ring.changed(lease("other", None, "7", Claim::All), after(1));
    ring.configure(wanted("ring", "a", 0b11), after(1));
    assert_eq!(saying(&mut ring, after(1)).claim, LAYOUT.claim(0b11));
    ring.answered(stored("2"), after(1));
    assert!(ring.next_read(after(1)).is_some());
    let mine = lease("me", Some("a"), "2", LAYOUT.claim(0b11));
    ring.listed(listing(&[lease("other", None, "7", Claim::All), mine]), after(1));
    assert_eq!((open(&ring), ring.phase()), (Some(0b01), Phase::Waiting));
    ring.deleted("other", after(2));
    assert_eq!(open(&ring), Some(0b11));
}

#[test]
fn a_lease_deleted_by_hand_closes_all_and_shows_the_same() {
    let mut ring = opened(0b11, Timing::default());
    ring.deleted("me", after(1));
    assert_eq!((open(&ring), shown(&ring)), (None, Some(0b11)));
    assert_eq!(ring.begin(1, &resource(), BEGIN, after(1)), None);
    assert!(ring.next_read(after(1)).is_some());
    let theirs = lease("other", Some("b"), "7", LAYOUT.claim(0b10));
    ring.listed(listing(std::slice::from_ref(&theirs)), after(1));
    assert!(saying(&mut ring, after(1)).is_new);
    ring.answered(stored("2"), after(1));
    assert!(ring.next_read(after(1)).is_some());
    ring.listed(listing(&[theirs, lease("me", Some("a"), "2", LAYOUT.claim(0b11))]), after(1));
    assert_eq!(shown(&ring), Some(0), "of a resource all is claimed or nothing");
}

#[test]
fn an_answer_to_what_was_asked_before_the_claim_opens_nothing() {
    let mut ring = Handover::new("me", Timing::default());
    ring.configure(wanted("ring", "a", 1), BEGIN);
    // Whose it is, the Leases say.
    ring.see_configs(vec![wanted("ring", "b", 1)], BEGIN);
    assert_eq!((ring.next_write(BEGIN), ring.next_read(BEGIN)), (None, Some("ring")));
    ring.listed(listing(&[]), BEGIN);
    saying(&mut ring, BEGIN);
    ring.unfollowed();
    assert!(ring.next_read(BEGIN).is_some());
    ring.answered(stored("1"), BEGIN);
    ring.listed(listing(&[]), BEGIN);
    assert_eq!(open(&ring), None);
    assert!(ring.next_read(BEGIN).is_some());
    ring.listed(Listing { is_consistent: false, ..listing(&[]) }, BEGIN);
    assert_eq!(open(&ring), None, "a cache");
}

#[test]
fn a_lapse_closes_writes_and_shows_the_same() {
    let silent_after = Some(Duration::from_secs(30));
    let mut ring = opened(1, Timing { silent_after, ..Timing::default() });
    let minute = Duration::from_secs(60);
    assert_eq!(ring.begin(1, &resource(), minute, after(20)), Some(Duration::from_secs(7)));
    assert_eq!(ring.wake(after(20)), Some(after(27)));
    assert_eq!(ring.begin(2, &resource(), minute, after(27)), None);
    assert_eq!((open(&ring), shown(&ring)), (None, Some(1)));
    assert_eq!(saying(&mut ring, after(28)).claim, LAYOUT.claim(1));
    ring.answered(stored("2"), after(30));
    assert_eq!(open(&ring), None, "others may have passed over it");
    assert!(ring.next_read(after(30)).is_some());
    ring.listed(listing(&[lease("me", Some("a"), "2", LAYOUT.claim(1))]), after(30));
    assert_eq!(open(&ring), Some(1));
    assert_eq!(ring.wake(after(30)), Some(after(38)), "renewed from the sending");
}

#[test]
fn a_silent_pod_is_passed_over_when_a_list_shows_the_same_version_late() {
    let silent_after = Some(Duration::from_secs(30));
    let mut ring = opened(1, Timing { silent_after, ..Timing::default() });
    let silent = lease("other", Some("b"), "7", LAYOUT.claim(0b10));
    ring.changed(silent.clone(), after(1));
    ring.configure(wanted("ring", "a", 0b11), after(1));
    saying(&mut ring, after(1));
    ring.answered(stored("2"), after(1));
    let mine = lease("me", Some("a"), "2", LAYOUT.claim(0b11));
    ring.next_read(after(1));
    ring.listed(listing(&[silent.clone(), mine]), after(1));
    for (at, version) in [(11, "3"), (21, "4")] {
        saying(&mut ring, after(at));
        ring.answered(stored(version), after(at));
    }
    assert_eq!(ring.next_read(after(30)), None);
    assert_eq!(open(&ring), Some(1));
    assert!(ring.next_read(after(31)).is_some());
    ring.listed(listing(&[silent, lease("me", Some("a"), "4", LAYOUT.claim(0b11))]), after(31));
    assert_eq!(open(&ring), Some(0b11));
}

#[test]
fn a_new_process_keeps_the_claim_of_the_last() {
    let mut ring = Handover::new("me", Timing::default());
    ring.configure(wanted("ring", "a", 0b01), BEGIN);
    assert_eq!(saying(&mut ring, BEGIN).replaces, None);
    ring.answered(Answer::Conflict, BEGIN);
    assert_eq!((ring.next_write(BEGIN), ring.next_read(BEGIN)), (None, Some("ring")));
    ring.listed(listing(&[lease("me", Some("a"), "5", LAYOUT.claim(0b11))]), BEGIN);
    let said = saying(&mut ring, BEGIN);
    assert_eq!((said.claim, said.replaces.as_deref()), (LAYOUT.claim(0b11), Some("5")));
    ring.answered(stored("6"), BEGIN);
    ring.next_read(BEGIN);
    ring.listed(listing(&[lease("me", Some("a"), "6", LAYOUT.claim(0b11))]), BEGIN);
    assert_eq!((open(&ring), ring.phase()), (Some(0b01), Phase::Closing));
    saying(&mut ring, after(60));
    ring.answered(stored("7"), after(60));
    ring.tick(after(62));
    assert_eq!(saying(&mut ring, after(62)).claim, LAYOUT.claim(0b01));
}

#[test]
fn a_new_process_whose_first_answer_is_lost_reads_who_has_written() {
    let mut ring = Handover::new("me", Timing::default());
    ring.configure(wanted("ring", "a", 0b01), BEGIN);
    saying(&mut ring, BEGIN);
    ring.answered(Answer::Unknown, BEGIN);
    assert_eq!((ring.next_write(BEGIN), ring.next_read(BEGIN)), (None, Some("ring")));
    // The last process did.
    ring.listed(listing(&[lease("me", Some("a"), "5", LAYOUT.claim(0b11))]), BEGIN);
    assert_eq!(saying(&mut ring, BEGIN).claim, LAYOUT.claim(0b11));
}

#[test]
fn a_lost_answer_is_read_and_written_again() {
    let mut ring = opened(0b01, Timing::default());
    ring.configure(wanted("ring", "a", 0b11), after(1));
    saying(&mut ring, after(1));
    ring.answered(Answer::Unknown, after(1));
    assert_eq!(ring.next_write(after(1)), None, "its version is not known");
    assert!(ring.next_read(after(1)).is_some());
    ring.listed(listing(&[lease("me", Some("a"), "2", LAYOUT.claim(0b11))]), after(2));
    assert_eq!(open(&ring), Some(0b01), "an earlier write may still take effect");
    assert_eq!(saying(&mut ring, after(2)).replaces.as_deref(), Some("2"));
    ring.answered(Answer::Conflict, after(2));
    assert!(ring.next_read(after(2)).is_some());
    ring.listed(listing(&[lease("me", Some("a"), "3", LAYOUT.claim(0b11))]), after(2));
    assert_eq!(saying(&mut ring, after(2)).replaces.as_deref(), Some("3"));
}

#[test]
fn a_pod_that_leaves_deletes_its_lease_last() {
    let mut ring = opened(1, Timing::default());
    ring.begin(1, &resource(), Duration::from_secs(60), BEGIN);
    ring.leave(after(1));
    assert_eq!((open(&ring), ring.next_write(after(1))), (None, None));
    ring.end(1, after(2));
    assert_eq!(ring.next_write(after(2)), Some(Write::Delete("1".into())));
    assert!(!ring.is_done());
    ring.answered(Answer::Done(None), after(2));
    assert!(ring.is_done());
    assert_eq!(ring.next_read(after(2)), None);
    assert_eq!(ring.next_write(after(2)), None);
}

#[test]
fn another_ring_is_entered_when_nothing_is_claimed_in_the_old_one() {
    let mut ring = opened(1, Timing::default());
    ring.begin(1, &resource(), Duration::from_secs(60), BEGIN);
    ring.configure(wanted("new", "a", 1), after(1));
    assert_eq!((open(&ring), ring.next_write(after(1))), (None, None));
    ring.end(1, after(2));
    let said = saying(&mut ring, after(2));
    assert_eq!((said.claim, &*said.ring), (Claim::Nothing, "ring"));
    ring.answered(stored("2"), after(2));
    let said = saying(&mut ring, after(2));
    assert_eq!((said.claim, &*said.ring), (LAYOUT.claim(1), "new"));
    ring.answered(stored("3"), after(2));
    assert_eq!(ring.next_read(after(2)), Some("new"));
    let mine = Lease { ring: "new".into(), ..lease("me", Some("a"), "3", LAYOUT.claim(1)) };
    ring.listed(listing(&[mine]), after(2));
    assert_eq!(open(&ring), Some(1));
}

#[test]
fn a_resource_that_is_not_limited_needs_no_claim() {
    let mut ring = opened(1, Timing::default());
    let free = GroupResource::new("", "nodes");
    let minute = Duration::from_secs(60);
    assert_eq!(ring.begin(1, &free, minute, BEGIN), Some(minute));
    assert_eq!(ring.under_way(), (0, 0));
}
