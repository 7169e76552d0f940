//! The shard's objects of one resource, and the judgement of a whole object.

use std::fmt;

use super::Boundary;
use crate::{
    policy::GroupResource,
    wire::{frames::Verdict, object::Object, selector::Selector},
};

/// The shard's objects of a resource: those that a selector selects and that are in every boundary.
#[derive(Debug, PartialEq, Eq)]
pub struct Scope {
    selector: Selector,
    text: String,
    boundaries: Vec<Boundary>,
}

impl Scope {
    /// The objects that `selector` selects.
    pub fn new(selector: Selector) -> Self {
        Self { text: selector.to_string(), selector, boundaries: Vec::new() }
    }

    /// The scope, restricted to the objects inside `boundary`.
    pub fn inside(mut self, boundary: Boundary) -> Self {
        self.boundaries.push(boundary);
        self
    }

    pub(super) fn and(&self, other: &Self) -> Self {
        let both = Self::new(self.selector.and(&other.selector));
        let boundaries = [&*self.boundaries, &*other.boundaries].concat();
        Self { boundaries, ..both }
    }

    pub(super) fn is_everything(&self) -> bool {
        self.selector.is_everything() && self.boundaries.is_empty()
    }

    /// The verdict on a whole object of `resource`, by its labels too. `Unknown` if a fact that
    /// decides is not known.
    pub fn owns(&self, resource: &GroupResource, object: &Object<'_>) -> Verdict {
        let is_selected = match object.labels {
            Some(labels) => self.selector.matches(|key| labels.get(key)),
            None if self.selector.is_everything() => true,
            None => return Verdict::Unknown,
        };
        if !is_selected {
            return Verdict::Drop;
        }
        self.bounds(object, *resource == GroupResource::new("", "namespaces"))
    }

    /// The verdict of the boundaries on an object that the selector selects.
    pub(super) fn bounds(&self, object: &Object<'_>, is_namespace: bool) -> Verdict {
        let verdicts = self.boundaries.iter().map(|boundary| boundary.judge(object, is_namespace));
        verdicts.fold(Verdict::Keep, |all, one| match (all, one) {
            (Verdict::Unknown, _) | (_, Verdict::Unknown) => Verdict::Unknown,
            (Verdict::Keep, one) => one,
            (Verdict::Drop, _) => Verdict::Drop,
        })
    }

    /// The boundaries, which no selector can express.
    pub fn boundaries(&self) -> &[Boundary] {
        &self.boundaries
    }

    /// The selector.
    pub fn selector(&self) -> &Selector {
        &self.selector
    }

    /// The selector as the value of `labelSelector=`.
    pub fn text(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for Scope {
    /// The canonical text of a scope: `team=blue; namespace in (a,b)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)?;
        for (at, boundary) in self.boundaries.iter().enumerate() {
            let gap = if at == 0 && self.text.is_empty() { "" } else { "; " };
            write!(f, "{gap}{boundary}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::{policy::sharding::Selected, wire::object::Labels};

    fn boundary(names: &[&str]) -> Boundary {
        Boundary {
            names: names.iter().map(|name| (*name).into()).collect(),
            pattern: None,
            selected: None::<Selected>,
            hash: None,
            has_cluster_scoped: false,
        }
    }

    #[test]
    fn a_whole_object_is_judged_by_labels_and_boundaries() {
        let scope = Scope::new("team=red".parse().unwrap()).inside(boundary(&["a"]));
        let pods = GroupResource::new("", "pods");
        let red = BTreeMap::from([("team".to_owned(), "red".to_owned())]);
        let object = |namespace, labels| Object {
            namespace,
            name: "x",
            uid: "u",
            labels,
            ..Object::default()
        };
        let none = BTreeMap::new();
        for (namespace, labels, verdict) in [
            ("a", Some(Labels::of(&red)), Verdict::Keep),
            ("b", Some(Labels::of(&red)), Verdict::Drop),
            ("a", Some(Labels::of(&none)), Verdict::Drop),
            ("a", None, Verdict::Unknown),
        ] {
            assert_eq!(scope.owns(&pods, &object(namespace, labels)), verdict, "{namespace}");
        }
        let any = Scope::new(Selector::everything()).inside(boundary(&["a"]));
        assert_eq!(any.owns(&pods, &object("a", None)), Verdict::Keep);
        assert_eq!(any.owns(&pods, &object("", None)), Verdict::Drop);
        let named = Object { name: "a", uid: "u", ..Object::default() };
        assert_eq!(any.owns(&GroupResource::new("", "namespaces"), &named), Verdict::Keep);
    }
}
