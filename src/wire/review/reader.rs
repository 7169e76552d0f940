//! The reader of a review.

use super::facts::{NotReview, Operation, Review, Stated};
use crate::{
    media::Encoding,
    object::{
        Fault, Wanted,
        walk::{Asked, Facts, Mark, Node, Step, Walker},
    },
};

/// The kinds of subresources whose kind is not that of their resource, with their groups
/// (Kubernetes 1.37). The subresource itself does not show it: the key that names it may come last.
const OF_SUBRESOURCES: [(&str, &str); 5] = [
    ("Scale", "autoscaling"),
    ("Scale", "extensions"),
    ("Eviction", "policy"),
    ("Binding", ""),
    ("TokenRequest", "authentication.k8s.io"),
];

/// Reads the facts of an AdmissionReview from the pieces of its body, with its keys in any order.
///
/// It holds the facts alone, at most 64 KiB of each object's. The caller holds the body until the
/// facts decide, and [`Self::read`] is its length so far. Behind that point nothing need be read:
/// another value for a key that was read is not seen then.
#[derive(Debug)]
pub struct Reader {
    walker: Option<Walker>,
    asked: Facts,
    objects: [Part; 2],
    request: Part,
    kind: Part,
    resource: Part,
    /// The innermost part that is open, next to the request.
    open: Option<Node>,
    read: u64,
    is_over: bool,
    failed: Option<NotReview>,
}

/// A part of a review.
#[derive(Debug, Default)]
struct Part {
    has_begun: bool,
    is_known: bool,
    facts: Facts,
}

impl Default for Reader {
    fn default() -> Self {
        Self::new()
    }
}

impl Reader {
    /// A reader at the start of a body.
    pub fn new() -> Self {
        let facts = |labels| Facts::of_write(Wanted { labels, ..Wanted::default() });
        let object = || Part { facts: facts(true), ..Part::default() };
        Self {
            walker: Walker::new(Encoding::Json, Node::Review),
            asked: facts(false),
            objects: [object(), object()],
            request: Part::default(),
            kind: Part::default(),
            resource: Part::default(),
            open: None,
            read: 0,
            is_over: false,
            failed: None,
        }
    }

    /// Reads the next piece of the body. Fails with [`NotReview`], and then on every further call.
    pub fn feed(&mut self, piece: &[u8]) -> Result<(), NotReview> {
        if let Some(failed) = self.failed {
            return Err(failed);
        }
        self.read = self.read.saturating_add(piece.len() as u64);
        let walked = self.walk(piece);
        walked.inspect_err(|failed| self.failed = Some(*failed))
    }

    /// Ends the body. Fails with [`NotReview`] if it was none, or not a whole one.
    pub fn finish(&mut self) -> Result<(), NotReview> {
        match self.failed {
            Some(failed) => Err(failed),
            None if self.is_over => Ok(()),
            None => Err(*self.failed.insert(NotReview::Truncated)),
        }
    }

    /// Bytes that were read: what the caller holds, as long as nothing is decided.
    pub fn read(&self) -> u64 {
        self.read
    }

    /// The facts so far. `None` until all of them but those of the object are known.
    pub fn review(&self) -> Option<Review<'_>> {
        let asked = self.asked.asked().filter(|_| self.failed.is_none())?;
        let is_known = self.request.is_known;
        // An absent namespace is known to be absent when the request has ended.
        let has_head = !asked.kind.is_empty()
            && !asked.api_version.is_empty()
            && !asked.uid.is_empty()
            && !asked.operation.is_empty()
            && self.kind.is_known
            && self.resource.is_known
            && (is_known || !asked.namespace.is_empty());
        has_head.then(|| {
            let operation = Operation::parse(asked.operation);
            let (group, resource) = asked.resource;
            Review {
                api_version: asked.api_version,
                uid: asked.uid,
                operation,
                group,
                resource,
                subresource: asked.subresource,
                namespace: asked.namespace,
                name: asked.name,
                is_of_subresource: OF_SUBRESOURCES.contains(&asked.of) && !is_kind_of(&asked),
                object: self.stated(operation),
            }
        })
    }

    fn stated(&self, operation: Operation) -> Stated<'_> {
        let [object, old] = &self.objects;
        let part = match operation {
            Operation::Create => object,
            Operation::Update | Operation::Delete => old,
            Operation::Connect | Operation::Other => return Stated::Unknown,
        };
        if !part.is_known && !self.request.is_known {
            return Stated::Coming;
        }
        part.facts.object().map_or(Stated::Unknown, Stated::Is)
    }

    fn walk(&mut self, mut rest: &[u8]) -> Result<(), NotReview> {
        while !self.is_over {
            let Some(walker) = &mut self.walker else { return Err(NotReview::Truncated) };
            let [object, old] = &mut self.objects;
            let facts = match self.open {
                Some(Node::ReviewObject) => &mut object.facts,
                Some(Node::ReviewOldObject) => &mut old.facts,
                _ => &mut self.asked,
            };
            let (step, piece) = walker.step(&mut rest, facts).map_err(NotReview::Malformed)?;
            match step {
                Step::More => return Ok(()),
                Step::Mark(Mark::Value { node, .. }, _) => {
                    self.begin(node, piece.last() == Some(&b'{'), piece.last() == Some(&b'n'))?;
                }
                Step::Mark(Mark::Item, _) => {
                    let ended = self.open.take().unwrap_or(Node::ReviewRequest);
                    self.part(ended).0.is_known = true;
                }
                Step::Known(_) => {
                    if let Some(open) = self.open {
                        self.part(open).0.is_known = true;
                    }
                }
                Step::Mark(..) => return Err(NotReview::Malformed(Fault::Unexpected)),
                Step::End(_) => self.is_over = true,
            }
            self.check()?;
        }
        Ok(())
    }

    /// Begins a part: a map, null, or something else.
    fn begin(&mut self, node: Node, is_map: bool, is_null: bool) -> Result<(), NotReview> {
        let (part, name) = self.part(node);
        if std::mem::replace(&mut part.has_begun, true) {
            return Err(NotReview::Repeated(name));
        }
        // A part that is no map states no facts.
        part.is_known = !is_map;
        match node {
            Node::ReviewRequest if is_null || !is_map => Err(NotReview::Missing(name)),
            Node::ReviewRequest => Ok(()),
            _ => {
                self.open = is_map.then_some(node);
                Ok(())
            }
        }
    }

    fn part(&mut self, node: Node) -> (&mut Part, &'static str) {
        let [object, old] = &mut self.objects;
        match node {
            Node::ReviewKind => (&mut self.kind, "request.kind"),
            Node::ReviewResource => (&mut self.resource, "request.resource"),
            Node::ReviewObject => (object, "request.object"),
            Node::ReviewOldObject => (old, "request.oldObject"),
            _ => (&mut self.request, "request"),
        }
    }

    /// Fails as soon as what was read is part of no review.
    fn check(&self) -> Result<(), NotReview> {
        let asked = self.asked.asked().ok_or(NotReview::Ambiguous)?;
        let is_wrong = |text: &str, right: &[&str]| {
            if text.is_empty() { self.is_over } else { !right.contains(&text) }
        };
        if is_wrong(asked.kind, &["AdmissionReview"]) {
            return Err(NotReview::Kind);
        }
        if is_wrong(asked.api_version, &["admission.k8s.io/v1", "admission.k8s.io/v1beta1"]) {
            return Err(NotReview::Version);
        }
        if !self.request.is_known {
            return if self.is_over { Err(NotReview::Missing("request")) } else { Ok(()) };
        }
        let (_, resource) = asked.resource;
        let (kind, _) = asked.of;
        let parts = [
            (asked.uid, "request.uid"),
            (asked.operation, "request.operation"),
            (resource, "request.resource"),
            (kind, "request.kind"),
        ];
        match parts.into_iter().find(|(text, _)| text.is_empty()) {
            Some((_, name)) => Err(NotReview::Missing(name)),
            None => Ok(()),
        }
    }
}

/// Whether the object's kind is that of the resource itself. This holds for the Bindings that are created
/// under their own name.
fn is_kind_of(asked: &Asked<'_>) -> bool {
    let ((kind, _), (_, resource)) = (asked.of, asked.resource);
    resource.strip_suffix('s').is_some_and(|singular| singular.eq_ignore_ascii_case(kind))
}
