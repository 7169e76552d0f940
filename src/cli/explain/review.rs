//! The shard that answers an admission review, with its reasons.

use std::{
    fmt::Write as _,
    fs::File,
    io::{self, Read},
    path::Path,
};

use super::request::Lines;
use ctrlmesh_api::{OwnerDown, Unowned};
use ctrlmesh_policy::{Answerer, ControllerShards, Here, Judged, ObjectRef, Owner};
use ctrlmesh_wire::review::{NotReview, Operation, Reader, Review, Stated};

/// The most shards that are named.
const FIRST: usize = 10;
/// Bytes that are read at once.
const PIECE: usize = 64 << 10;

/// The reason why there is no review.
#[derive(Debug, thiserror::Error)]
pub enum BadReview {
    #[error("cannot be read")]
    Unreadable(#[from] io::Error),
    #[error("is not an AdmissionReview in JSON, so the pod that gets it answers it")]
    Not(#[from] NotReview),
}

/// The explanation, one fact per line; `path` may be `-`. `siblings` is `None` if the config has no
/// webhook.
pub(super) fn explain(
    config: &ObjectRef,
    siblings: Option<&ControllerShards>,
    path: &Path,
) -> Result<String, BadReview> {
    let reader = match path.to_str() {
        Some("-") => read(&mut io::stdin().lock())?,
        _ => read(&mut File::open(path)?)?,
    };
    // A reader that has finished knows all facts.
    let review = reader.review().ok_or(NotReview::Truncated)?;
    Ok(explanation(config, siblings, &review))
}

/// Reads all of the review, also what stands behind the facts that decide.
fn read(source: &mut impl Read) -> Result<Reader, BadReview> {
    let mut reader = Reader::new();
    let mut piece = vec![0; PIECE];
    loop {
        match source.read(&mut piece)? {
            0 => {
                reader.finish()?;
                return Ok(reader);
            }
            length => reader.feed(piece.get(..length).unwrap_or_default())?,
        }
    }
}

fn explanation(
    config: &ObjectRef,
    siblings: Option<&ControllerShards>,
    review: &Review<'_>,
) -> String {
    let mut lines = Lines::default();
    lines.add("review", &subject(review));
    match siblings {
        None => {
            lines.add("shards", &format!("not asked: {config} has no spec.webhook"));
            lines.add("answer", "by the pod that gets it");
        }
        Some(siblings) => decided(siblings, review, &mut lines),
    }
    lines.0
}

fn decided(siblings: &ControllerShards, review: &Review<'_>, lines: &mut Lines) {
    lines.add("facts", &facts(review));
    for judged in siblings.judged(review).take(FIRST) {
        lines.add("shard", &shard(&judged));
    }
    let more = siblings.names().count().saturating_sub(FIRST);
    if more > 0 {
        lines.add("shard", &format!("and {more} more"));
    }
    for unreadable in siblings.unreadable() {
        lines.add("unread", &unreadable.why);
    }
    // All facts are known: none is still to come.
    let owner = siblings.owner(review).unwrap_or(Owner::Unknown);
    lines.add("owner", &owner_of(owner, siblings));
    lines.add("answer", &answer(siblings.answerer(owner), siblings));
}

fn subject(review: &Review<'_>) -> String {
    let mut text = format!("{} {}", review.operation, review.resource);
    // Writing into a string does not fail.
    let _ = match (review.group, review.subresource) {
        ("", "") => Ok(()),
        ("", subresource) => write!(text, "/{subresource}"),
        (group, "") => write!(text, ".{group}"),
        (group, subresource) => write!(text, ".{group}/{subresource}"),
    };
    for (before, part) in [(" ", review.name), (" in ", review.namespace)] {
        if !part.is_empty() {
            text.push_str(before);
            text.push_str(part);
        }
    }
    text
}

fn facts(review: &Review<'_>) -> String {
    let (from, why) = match review.operation {
        Operation::Create => ("object", ""),
        Operation::Update | Operation::Delete => ("oldObject", ", which says whose it is now"),
        Operation::Connect | Operation::Other => return "the namespace alone".into(),
    };
    match review.object {
        Stated::Is(object) => {
            let uid = if object.uid.is_empty() { "; it has no uid" } else { "" };
            let labels = if review.is_of_subresource {
                "; its labels are not those of the resource"
            } else {
                ""
            };
            format!("the namespace, and those of {from}{why}{uid}{labels}")
        }
        Stated::Coming | Stated::Unknown => {
            format!("the namespace alone: the metadata of {from} is missing or ambiguous")
        }
    }
}

fn shard(judged: &Judged<'_>) -> String {
    let Judged { shard, scope, has } = judged;
    match (scope, has) {
        (None, _) => format!("{shard} has it: it does not limit the resource"),
        (Some(scope), Some(true)) => format!("{shard} has it: {scope}"),
        (Some(scope), Some(false)) => format!("{shard} does not have it: {scope}"),
        (Some(scope), None) => format!("{shard} may have it, a fact is missing: {scope}"),
    }
}

fn owner_of(owner: Owner<'_>, siblings: &ControllerShards) -> String {
    let own = siblings.names().next().unwrap_or_default();
    match owner {
        Owner::Here(Here::Own) => format!("{own}, whose pod gets it"),
        Owner::Here(Here::Unlimited) => "all: no shard limits the resource".into(),
        Owner::Here(Here::FactMissing) => "not told by the facts".into(),
        Owner::Here(Here::Route) => "not asked: route is Any".into(),
        Owner::Sibling(shard) => shard.into(),
        Owner::Unowned => "none".into(),
        Owner::Unknown => "none that can be read, and there are others".into(),
    }
}

fn answer(answerer: Answerer<'_>, siblings: &ControllerShards) -> String {
    let by_it = "by the pod that gets it";
    match (answerer, siblings.webhook().owner_down) {
        (Answerer::Here, _) => by_it.into(),
        (Answerer::Sibling(shard), OwnerDown::Fail) => {
            format!("by a pod of {shard}; if none can, the call fails (ownerDown: Fail)")
        }
        (Answerer::Sibling(shard), OwnerDown::Any) => {
            format!("by a pod of {shard}; if none can, {by_it} (ownerDown: Any)")
        }
        (Answerer::Allow, _) => format!("allowed, by no one (unowned: {})", Unowned::Allow),
        (Answerer::Deny, _) => format!("denied, by no one (unowned: {})", Unowned::Deny),
        (Answerer::Fail, _) => format!("the call fails (ownerDown: {})", OwnerDown::Fail),
    }
}

#[cfg(test)]
mod tests;
