//! The objects of one resource under two policies.
//!
//! Hides the judgement of an object by each policy, and its text. Knows nothing of the cluster.

use std::{collections::BTreeMap, fmt::Write as _, sync::Arc};

use kube::api::ObjectMeta;

use ctrlmesh_policy::{GroupResource, ObjectFacts, Scope, Sharding, SharedNamespaces};
use ctrlmesh_wire::object::{Labels, Object};

/// The number of objects named without `--all`.
const FIRST: usize = 10;

/// The objects of a resource, by the effect of the change.
pub(super) struct Moves {
    resource: GroupResource,
    shown: [Option<Shown>; 2],
    /// The maximum numbers of names kept: of objects that move, and of those that stay.
    most: [usize; 2],
    pub(super) leaves: Objects,
    pub(super) comes: Objects,
    pub(super) stays: Objects,
    pub(super) neither: Objects,
    unjudged: Objects,
}

/// The objects of a resource that a shard is shown.
pub(super) struct Shown {
    scope: Arc<Scope>,
    shared: SharedNamespaces,
}

/// Some objects: their number, and the first names.
#[derive(Default)]
pub(super) struct Objects {
    pub(super) count: usize,
    names: Vec<String>,
}

impl Shown {
    /// Those of a resource. `None` means all.
    pub(super) fn of(sharding: &Sharding, resource: &GroupResource) -> Option<Self> {
        let scope = Arc::clone(sharding.scope(resource)?);
        Some(Self { scope, shared: sharding.shared_namespaces(resource) })
    }

    /// Whether the object is among them. `None` if the proxy cannot judge it.
    fn has(&self, resource: &GroupResource, meta: &ObjectMeta) -> Option<bool> {
        let none = BTreeMap::new();
        let object = Object {
            namespace: meta.namespace.as_deref().unwrap_or_default(),
            name: meta.name.as_deref().unwrap_or_default(),
            uid: meta.uid.as_deref().unwrap_or_default(),
            labels: Some(Labels::of(meta.labels.as_ref().unwrap_or(&none))),
            ..Object::default()
        };
        let facts = ObjectFacts::of(&object, resource.are_namespaces());
        self.scope.shows(&facts, &self.shared)
    }
}

impl Moves {
    /// Moves between the objects that the old policy shows and those that the new policy shows. `None` means all
    /// objects of the resource. `names_all` keeps the names of all objects that are or will be in the shard.
    pub(super) fn new(resource: GroupResource, shown: [Option<Shown>; 2], names_all: bool) -> Self {
        Self {
            resource,
            shown,
            most: if names_all { [usize::MAX; 2] } else { [FIRST, 0] },
            leaves: Objects::default(),
            comes: Objects::default(),
            stays: Objects::default(),
            neither: Objects::default(),
            unjudged: Objects::default(),
        }
    }

    /// Judges an object by both.
    pub(super) fn add(&mut self, meta: &ObjectMeta) {
        let has = |shown: &Option<Shown>| match shown {
            Some(shown) => shown.has(&self.resource, meta),
            None => Some(true),
        };
        let [before, after] = self.shown.each_ref().map(has);
        let [some, rest] = self.most;
        let (objects, most) = match (before, after) {
            (None, _) | (_, None) => (&mut self.unjudged, some),
            (Some(true), Some(false)) => (&mut self.leaves, some),
            (Some(false), Some(true)) => (&mut self.comes, some),
            (Some(true), Some(true)) => (&mut self.stays, rest),
            (Some(false), Some(false)) => (&mut self.neither, 0),
        };
        objects.count += 1;
        if objects.names.len() < most {
            let name = meta.name.as_deref().unwrap_or_default();
            objects.names.push(match meta.namespace.as_deref() {
                Some(namespace) => format!("{namespace}/{name}"),
                None => name.to_owned(),
            });
        }
    }

    pub(super) fn text(&self) -> String {
        let mut text = format!("{}\n", self.resource);
        let [before, after] = self.shown.each_ref().map(|shown| match shown {
            Some(Shown { scope, shared }) => format!("{scope}{shared}"),
            None => "all of it".to_owned(),
        });
        line(&mut text, "before", &before);
        line(&mut text, "after", &after);
        for (what, objects) in [
            ("leaves", &self.leaves),
            ("comes", &self.comes),
            ("stays", &self.stays),
            ("neither", &self.neither),
        ] {
            objects.write(what, &mut text);
        }
        if self.unjudged.count > 0 {
            self.unjudged.write("refused", &mut text);
            line(&mut text, "", "without a uid: a list with them is refused");
        }
        text
    }
}

impl Objects {
    fn write(&self, what: &str, text: &mut String) {
        line(text, what, &self.count.to_string());
        for name in &self.names {
            line(text, "", name);
        }
        let more = self.count - self.names.len();
        if more > 0 && !self.names.is_empty() {
            line(text, "", &format!("and {more} more"));
        }
    }
}

fn line(text: &mut String, name: &str, value: &str) {
    // Writing into a string does not fail.
    let _ = writeln!(text, "  {name:<8} {value}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use ctrlmesh_policy::{LabelSet, NamespaceLabels, Policy, from_documents};

    fn policy(limit: &str) -> Policy {
        let yaml = format!(
            "apiVersion: ctrlmesh.kusionstack.io/v1alpha1\nkind: ShardingConfig\n\
             metadata: {{name: blue}}\n\
             spec: {{selector: {{matchLabels: {{app: op}}}}, limits: [{{clusterScoped: Exclude, {limit}}}]}}\n"
        );
        let gold = BTreeMap::from([("tier".to_owned(), "gold".to_owned())]);
        let known = NamespaceLabels::from([
            ("a".to_owned(), gold.into()),
            ("b".to_owned(), LabelSet::default()),
        ]);
        from_documents(yaml.as_bytes(), "blue", None).unwrap().resolve(Some(&known)).unwrap()
    }

    fn object(namespace: &str, name: &str, team: &str) -> ObjectMeta {
        ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some(namespace.to_owned()).filter(|namespace| !namespace.is_empty()),
            uid: Some(format!("uid-{name}")),
            labels: Some([("team".to_owned(), team.to_owned())].into()),
            ..ObjectMeta::default()
        }
    }

    fn moves(resource: &str, limits: [&str; 2], objects: &[ObjectMeta], names_all: bool) -> String {
        let resource = GroupResource::new("", resource);
        let [old, new] = limits.map(|limit| policy(limit).sharding);
        let shown = [old, new].map(|one| Shown::of(&one, &resource));
        let mut moves = Moves::new(resource, shown, names_all);
        objects.iter().for_each(|object| moves.add(object));
        moves.text()
    }

    const GOLD: &str = "namespaces: {selector: {matchLabels: {tier: gold}}}";
    const RED_B: &str = "namespaces: {names: [b]}, selector: {matchLabels: {team: red}}";

    #[test]
    fn each_object_is_told_once_with_what_becomes_of_it() {
        let objects =
            [object("a", "one", "red"), object("b", "two", "red"), object("b", "three", "blue")];
        assert_eq!(
            moves("secrets", [GOLD, RED_B], &objects, false),
            "secrets\n\
             \x20 before   namespace labels tier=gold, nothing without a namespace\n\
             \x20 after    team=red; namespace in (b), nothing without a namespace\n\
             \x20 leaves   1\n\
             \x20          a/one\n\
             \x20 comes    1\n\
             \x20          b/two\n\
             \x20 stays    0\n\
             \x20 neither  1\n"
        );
    }

    #[test]
    fn a_namespace_is_what_it_names() {
        let objects = [object("", "a", ""), object("", "b", "red"), object("", "c", "red")];
        let text = moves("namespaces", [GOLD, RED_B], &objects, true);
        assert!(text.contains("leaves   1\n           a\n"), "{text}");
        assert!(text.contains("comes    1\n           b\n"), "{text}");
    }

    #[test]
    fn the_first_are_named_unless_all_are_asked_for() {
        let objects: Vec<_> = (0..12).map(|at| object("a", &format!("o-{at:02}"), "")).collect();
        let text = moves("pods", [GOLD, RED_B], &objects, false);
        assert!(text.contains("a/o-09\n           and 2 more\n  comes    0\n"), "{text}");
        let text = moves("pods", [GOLD, RED_B], &objects, true);
        assert!(text.contains("a/o-11\n  comes    0\n"), "{text}");
        let text = moves("pods", [GOLD, GOLD], &objects, false);
        assert!(text.contains("stays    12\n  neither  0\n"), "{text}");
        assert!(moves("pods", [GOLD, GOLD], &objects, true).contains("12\n           a/o-00\n"));
    }

    #[test]
    fn what_the_proxy_cannot_judge_is_not_told_as_something_else() {
        let hash = "hash: {of: uid, ranges: [{from: '0x0000000000000000', to: ''}]}";
        let without = ObjectMeta { uid: None, ..object("a", "metrics", "") };
        let text = moves("pods", [hash, GOLD], &[without], false);
        assert!(text.contains("refused  1\n           a/metrics\n"), "{text}");
        assert!(text.contains("leaves   0\n"), "{text}");
        // An object that is outside by its namespace needs no uid.
        let hash_in_b = format!("namespaces: {{names: [b]}}, {hash}");
        let without = ObjectMeta { uid: None, ..object("a", "metrics", "") };
        let text = moves("pods", [&hash_in_b, GOLD], &[without], false);
        assert!(text.contains("comes    1\n           a/metrics\n"), "{text}");
    }
}
