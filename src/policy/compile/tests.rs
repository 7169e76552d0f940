use super::*;

fn spec(yaml: &str) -> ShardingConfigSpec {
    serde_yaml::from_str(yaml).unwrap()
}

fn problems(yaml: &str) -> Vec<String> {
    let invalid = compile("blue", "ns", &spec(yaml)).unwrap_err();
    invalid.problems().iter().map(ToString::to_string).collect()
}

const PODS: &str = "selector: {matchLabels: {app: op}}\n";

#[test]
fn every_problem_is_told_at_once_with_its_field() {
    let yaml = "
selector: {matchLabels: {}}
controller: {leaderElectionName: My Lock}
limits:
- relateResources: [{apiGroups: [Apps], resources: [Pods]}, {apiGroups: [], resources: []}]
  selector:
    matchLabels: {'a b': c}
    matchExpressions: [{key: a, operator: In, values: []}]
";
    let problems = problems(yaml);
    let fields = [
        "spec.controller.leaderElectionName: \"My Lock\"",
        "spec.selector: is empty",
        "spec.limits[0].selector.matchLabels[\"a b\"]",
        "spec.limits[0].selector.matchExpressions[0]",
        "spec.limits[0].relateResources[0]: apiGroups: \"Apps\"",
        "spec.limits[0].relateResources[1].apiGroups",
        "spec.limits[0].relateResources[1].resources",
    ];
    assert_eq!(problems.len(), fields.len(), "{problems:#?}");
    for field in fields {
        assert!(problems.iter().any(|p| p.starts_with(field)), "{field}: {problems:#?}");
    }
}

#[test]
fn a_resource_in_two_limits_is_a_conflict() {
    let yaml = format!(
        "{PODS}
limits:
- relateResources: [{{apiGroups: [''], resources: [pods, secrets]}}]
- relateResources: [{{apiGroups: ['*'], resources: [secrets]}}]
"
    );
    let problems = problems(&yaml);
    assert_eq!(problems.len(), 1, "{problems:#?}");
    assert!(problems[0].contains("secrets.*") && problems[0].contains("limits[0]"), "{problems:?}");
}

#[test]
fn an_unknown_operator_or_field_is_refused_by_name() {
    for (yaml, wrong) in [
        ("selector: {matchExpressions: [{key: a, operator: Inn}]}", "Inn"),
        ("selector: {matchLabel: {a: b}}", "matchLabel"),
        ("selector: {}\nlimit: []", "limit"),
        ("selector: {}\nlimits: [{relatedResources: []}]", "relatedResources"),
    ] {
        let error = serde_yaml::from_str::<ShardingConfigSpec>(yaml).unwrap_err();
        assert!(error.to_string().contains(wrong), "{error}");
    }
}

#[test]
fn the_hash_tells_what_a_policy_does_and_not_how_it_is_written() {
    let compile = |yaml: &str| compile("blue", "ns", &spec(yaml)).unwrap();
    let one = compile(
        "selector: {matchLabels: {app: op}}
limits:
- relateResources: [{apiGroups: [''], resources: [pods, secrets]}]
  selector: {matchLabels: {a: '1', b: '2'}}",
    );
    let same = compile(
        "selector: {matchLabels: {app: other}}
limits:
- relateResources: [{apiGroups: [''], resources: [secrets]}, {apiGroups: [''], resources: [pods]}]
  selector: {matchExpressions: [{key: b, operator: In, values: ['2']}], matchLabels: {a: '1'}}",
    );
    assert_eq!(one.hash(), same.hash());
    let other = compile(
        "selector: {matchLabels: {app: op}}
limits:
- relateResources: [{apiGroups: [''], resources: [pods]}]
  selector: {matchLabels: {a: '1', b: '2'}}",
    );
    assert_ne!(one.hash(), other.hash());
}

#[test]
fn boundaries_that_cannot_be_used_say_which_field_and_why() {
    let yaml = format!(
        "{PODS}
limits:
- relateResources: [{{apiGroups: [''], resources: [pods]}}]
  namespaces: {{names: [Team, a.b, ok], pattern: 'a('}}
- relateResources: [{{apiGroups: [''], resources: [secrets]}}]
  namespaces: {{}}
  clusterScoped: Include
- relateResources: [{{apiGroups: [''], resources: [nodes]}}]
  hash: {{of: namespace, ranges: [{{from: '0x0', to: ''}}]}}
- relateResources: [{{apiGroups: [''], resources: [services]}}]
  hash: {{of: uid, ranges: [{{from: '0x0000000000000000', to: ''}}, {{from: '0x8000000000000000', to: ''}}]}}
- relateResources: [{{apiGroups: [''], resources: [events]}}]
  hash: {{of: uid, ranges: []}}
"
    );
    let problems = problems(&yaml);
    let fields = [
        "spec.limits[0].clusterScoped: is missing",
        "spec.limits[0].namespaces.names[0]: \"Team\"",
        "spec.limits[0].namespaces.names[1]: \"a.b\"",
        "spec.limits[0].namespaces.pattern: \"a(\"",
        "spec.limits[1].namespaces: is empty",
        "spec.limits[2].clusterScoped: is missing",
        "spec.limits[2].hash.ranges[0]: \"0x0\" is no hash",
        "spec.limits[3].hash.ranges: [0x8000000000000000, end) overlaps",
        "spec.limits[4].hash.ranges: is empty",
    ];
    assert_eq!(problems.len(), fields.len(), "{problems:#?}");
    for field in fields {
        assert!(problems.iter().any(|p| p.starts_with(field)), "{field}: {problems:#?}");
    }
}

#[test]
fn a_boundary_is_part_of_what_the_policy_does() {
    let hash = |limit: &str| {
        let yaml = format!("{PODS}\nlimits: [{limit}]");
        *compile("blue", "ns", &spec(&yaml)).unwrap().hash()
    };
    let all = [
        "{}",
        "{clusterScoped: Exclude}",
        "{namespaces: {names: [a]}, clusterScoped: Include}",
        "{namespaces: {names: [a]}, clusterScoped: Exclude}",
        "{namespaces: {names: [a, b]}, clusterScoped: Exclude}",
        "{namespaces: {pattern: a}, clusterScoped: Exclude}",
        "{hash: {of: uid, ranges: [{from: '0x0000000000000000', to: ''}]}}",
        "{hash: {of: uid, ranges: [{from: '0x0000000000000001', to: ''}]}}",
        "{hash: {of: namespace, ranges: [{from: '0x0000000000000001', to: ''}]}, clusterScoped: Include}",
    ];
    let hashes: BTreeSet<_> = all.iter().map(|limit| hash(limit)).collect();
    assert_eq!(hashes.len(), all.len());
    assert_eq!(
        hash("{namespaces: {names: [b, a]}, clusterScoped: Exclude}"),
        hash("{namespaces: {names: [a, b]}, clusterScoped: Exclude}")
    );
}
