//! The oracle of everything that decides what a client sees: the API server's own selectors.
//!
//! A seed draws a history of writes, a boundary and a client. Two informers follow the history:
//! one straight at the API server with a native selector, one through the proxy with the rule that
//! says the same. At every quiet point they must agree. Two lanes, each with a server of its own:
//!
//! | lane | the server | native | ours |
//! |---|---|---|---|
//! | `sharding` | `ShardedListAndWatch=true` | `shardSelector` | `hash` of the uid or the namespace |
//! | `plain` | as released | a label that every object has by construction, or `fieldSelector=metadata.namespace=…`, a watch a namespace | `namespaces` by names, pattern or their labels, `hash` of the namespace |
//!
//! In three seeds of four the proxy may not hand its rule to the server: it judges alone.
//!
//! A quiet point: the writes pause, and an object that both informers see is written last in each
//! resource. Watches are ordered, so an informer that has been told of that version has been told
//! of all before it. The test then judges the following, with no more waiting:
//!
//! 1. The stores are equal: namespace, name, uid, resourceVersion, and a digest of all the rest.
//! 2. The streams are equal: the same ADDED, MODIFIED and DELETED of the same versions of the same
//!    objects, in the same order, with equal digests. No difference is legitimate but one: what a
//!    client was shown before it last listed is forgotten, in both streams, since a list tells no
//!    events. The crate `kube` does not say ADDED or MODIFIED, nor where its list was: with it the
//!    two count as one, and a list again forgets all up to the quiet point that follows.
//! 3. Each stream's events and lists, applied one after the other, give the informer's store. ADDED
//!    names an object that the store lacks, MODIFIED and DELETED one that it has. Versions never fall.
//! 4. Both stores are what the test's own model of the boundary says.
//! 5. An informer is notified by a bookmark of a write that it does not see.
//! 6. Where the proxy is killed, further clients of the resource have the same store: what one of
//!    them is shown when it comes back lets no other go on in another shard.
//! 7. Ours lists once, so that a client that compares no lists holds the same, unless the seed compacts
//!    what was shown, ends the API server, or ends a proxy that keeps no state.
//!
//! In every odd seed the policy changes while the writes go on. A native selector cannot change, so
//! there a fresh native list stands for the first informer, and the second is waited for until it
//! is there: points 1 (without the digest, which no list of another encoding shares), 3 and 4. What
//! changes hands is notified of with the versions that it has, which are older; then a bookmark for
//! where the stream is comes before anything else. Whether the stream goes on or the client lists
//! again is all the same.
//!
//! Namespaces get other labels all the time, which matters where the boundary follows them. In even
//! seeds none enters or leaves the shard then, since the proxy may tell by difference what a native
//! selector tells event by event; and no policy is made again. In odd seeds they do, with objects in
//! them and while these are written. How many policies that makes is not said, so the test waits for
//! what a user sees: a list shows what the model has. Then the beacon, a namespace with which nothing
//! else is done, is moved across the boundary. Namespaces are watched in order, so a proxy that knows of
//! that knows of all that was done before, be it undone again. Only then a collection is deleted, or
//! an informer judged.
//!
//! Where the policy is a config of the cluster, two seeds of three have it in a ring: what it takes away
//! is in force first, and what it gives when the pod's Lease says so.
//!
//! No controller runs: what the one of namespaces does when one is deleted, the test does.
//!
//! `ORACLE_SEEDS=200` draws that many seeds a lane from the time, after the fixed ones;
//! `ORACLE_SEED=n` runs that one alone. A failure leaves everything that was printed in the
//! directory that it names.

mod history;
mod informer;
mod judge;
mod lane;
mod moves;
mod mutants;
mod namespaces;
mod plan;
mod rule;
mod run;
mod story;

use std::collections::BTreeSet;

use anyhow::Result;

use self::plan::{Gate, Plan};

#[test]
fn the_fixed_seeds_have_everything() {
    let traits = |seed: u64| {
        [Gate::On, Gate::Off].into_iter().flat_map(move |gate| Plan::of(gate, seed).traits())
    };
    let all: BTreeSet<_> = (0..500).flat_map(traits).collect();
    let fixed: BTreeSet<_> = lane::FIXED.into_iter().flat_map(traits).collect();
    assert_eq!(fixed, all);
}

#[test]
fn sharding_server() -> Result<()> {
    lane::run(Gate::On)
}

#[test]
fn plain_server() -> Result<()> {
    lane::run(Gate::Off)
}
