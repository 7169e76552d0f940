//! Several documents, their YAML, and the notices about them.

use std::fs;

use ctrlmesh::cli::yaml;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::{Files, golden};

const POD: &str = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: one\n  labels:\n    \
                   ctrlmesh.kusionstack.io/enable-proxy: 'true'\nspec:\n  containers:\n  - name: app\n    image: app\n";

fn pod(name: &str, namespace: &str, account: &str) -> String {
    POD.replace("name: one\n", &format!("name: {name}\n  namespace: {namespace}\n"))
        .replace("spec:\n", &format!("spec:\n  serviceAccountName: {account}\n"))
}

/// Kind, namespace and name of each document.
fn listed(yaml: &str) -> Vec<String> {
    let text = |object: &Value, at: &str| {
        object.pointer(at).and_then(Value::as_str).unwrap_or("-").to_owned()
    };
    yaml::documents(yaml)
        .iter()
        .filter_map(|document| yaml::parse(document).unwrap())
        .map(|o| {
            let place = [text(&o, "/metadata/namespace"), text(&o, "/metadata/name")];
            format!("{} {}", text(&o, "/kind"), place.join("/"))
        })
        .collect()
}

#[test]
fn what_is_not_injected_stays_as_it_stands() {
    let files = Files::new();
    let others = "# a licence\n---\n# about it\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: odd}\n\
                  data:\n  script: |+\n    x: y\n\n     deep\n\n\
                  ---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {name: plain}\n\
                  spec: {template: {spec: {containers: [{name: a, image: \"yes\"}]}}}\n";
    let output = files.run(others, &[]);
    assert!(output.status.success());
    assert_eq!(String::from_utf8(output.stdout).unwrap(), format!("---\n{others}"));
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(told.contains("Deployment default/plain is not injected"), "{told}");
    assert!(!told.contains("odd"), "{told}");
}

#[test]
fn companions_come_once_and_before_who_needs_them() {
    let files = Files::new();
    let input = [
        "apiVersion: v1\nkind: Namespace\nmetadata: {name: a}\n".to_owned(),
        pod("first", "a", "x"),
        pod("second", "a", "x"),
        pod("third", "a", "z"),
        pod("fourth", "b", "x"),
    ]
    .join("---\n");
    let output = files.injected(&input, &[]);
    let wanted = [
        "Namespace -/a",
        "Secret a/ctrlmesh-mesh-ca",
        "ConfigMap a/ctrlmesh-ca-bundle",
        "Role a/ctrlmesh-proxy",
        "RoleBinding a/ctrlmesh-proxy-x",
        "Pod a/first",
        "Pod a/second",
        "RoleBinding a/ctrlmesh-proxy-z",
        "Pod a/third",
        "Secret b/ctrlmesh-mesh-ca",
        "ConfigMap b/ctrlmesh-ca-bundle",
        "Role b/ctrlmesh-proxy",
        "RoleBinding b/ctrlmesh-proxy-x",
        "Pod b/fourth",
    ];
    assert_eq!(listed(&output), wanted);
    assert_eq!(files.injected(&output, &[]), output);

    // Another mesh CA replaces the one of an earlier run, wherever that stands.
    let others = Files::new();
    let turned: Vec<String> = yaml::documents(&output).into_iter().rev().collect();
    let moved = others.injected(&turned.join("---\n"), &[]);
    let secrets = moved.matches("kind: Secret").count();
    assert_eq!((secrets, listed(&moved).len()), (2, wanted.len()));
    assert!(!moved.contains(
        &fs::read_to_string(files.path("mesh/ca.crt")).unwrap().replace('\n', "\n    ")[..200]
    ));
}

#[test]
fn the_right_to_follow_namespaces_comes_where_it_is_asked_for() {
    let files = Files::new();
    let flags = ["--namespace-labels"];
    let input =
        [pod("first", "a", "x"), pod("second", "a", "z"), pod("third", "b", "x")].join("---\n");
    let output = files.injected(&input, &flags);
    let wanted = [
        "ClusterRole -/ctrlmesh-proxy-namespaces",
        "Secret a/ctrlmesh-mesh-ca",
        "ConfigMap a/ctrlmesh-ca-bundle",
        "Role a/ctrlmesh-proxy",
        "RoleBinding a/ctrlmesh-proxy-x",
        "ClusterRoleBinding -/ctrlmesh-proxy-namespaces:a:x",
        "Pod a/first",
        "RoleBinding a/ctrlmesh-proxy-z",
        "ClusterRoleBinding -/ctrlmesh-proxy-namespaces:a:z",
        "Pod a/second",
        "Secret b/ctrlmesh-mesh-ca",
        "ConfigMap b/ctrlmesh-ca-bundle",
        "Role b/ctrlmesh-proxy",
        "RoleBinding b/ctrlmesh-proxy-x",
        "ClusterRoleBinding -/ctrlmesh-proxy-namespaces:b:x",
        "Pod b/third",
    ];
    assert_eq!(listed(&output), wanted);
    assert_eq!(files.injected(&output, &flags), output);
    assert!(!files.injected(&input, &[]).contains("Cluster"));

    let cluster: String = yaml::documents(&output)
        .iter()
        .filter(|document| document.contains("kind: Cluster"))
        .take(2)
        .map(|document| format!("---\n{document}"))
        .collect();
    golden("namespace-labels.yaml", &cluster);
}

#[test]
fn workloads_without_a_namespace_get_the_one_that_is_told() {
    let files = Files::new();
    let output = files.injected(POD, &["-n", "team"]);
    assert_eq!(
        listed(&output),
        [
            "Secret team/ctrlmesh-mesh-ca",
            "ConfigMap team/ctrlmesh-ca-bundle",
            "Role team/ctrlmesh-proxy",
            "RoleBinding team/ctrlmesh-proxy-default",
            "Pod -/one",
        ]
    );
}

#[test]
fn what_a_list_holds_is_injected() {
    let files = Files::new();
    let items: String = POD.lines().map(|line| format!("  {line}\n")).collect();
    let list = format!("apiVersion: v1\nkind: List\nitems:\n-{}", &items[1..]);
    let output = files.injected(&list, &[]);
    assert_eq!(listed(&output).last().unwrap(), "List -/-");
    assert!(output.contains("name: ctrlmesh-proxy\n"));
    assert_eq!(files.injected(&output, &[]), output);
}

#[test]
fn every_kind_with_pods_is_known() {
    let files = Files::new();
    let template = "metadata:\n  labels:\n    ctrlmesh.kusionstack.io/enable-proxy: 'true'\nspec:\n  containers:\n  - name: app\n";
    let indented = |by: usize| -> String {
        template.lines().map(|line| format!("{}{line}\n", " ".repeat(by))).collect()
    };
    for (version, kind) in [
        ("v1", "ReplicationController"),
        ("apps/v1", "Deployment"),
        ("apps/v1", "StatefulSet"),
        ("apps/v1", "DaemonSet"),
        ("apps/v1", "ReplicaSet"),
        ("batch/v1", "Job"),
        ("batch/v1", "CronJob"),
    ] {
        let head = format!("apiVersion: {version}\nkind: {kind}\nmetadata: {{name: x}}\nspec:\n");
        let body = match kind {
            "CronJob" => format!("  jobTemplate:\n    spec:\n      template:\n{}", indented(8)),
            _ => format!("  template:\n{}", indented(4)),
        };
        let output = files.injected(&format!("{head}{body}"), &[]);
        assert!(output.contains("name: ctrlmesh-proxy\n"), "{kind}");
        // A Deployment of someone else's API is not ours to change, and not to pass over either.
        let foreign = format!("{head}{body}").replace(version, "example.com/v1");
        let output = files.run(&foreign, &[]);
        assert!(output.status.success());
        assert!(!String::from_utf8(output.stdout).unwrap().contains("ctrlmesh-proxy"));
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(told.contains("is NOT injected"), kind != "CronJob", "{kind}: {told}");
    }
    let job = format!(
        "apiVersion: batch/v1\nkind: Job\nmetadata: {{name: x}}\nspec:\n  template:\n{}      restartPolicy: Never\n",
        indented(4)
    );
    let output = files.run(&job, &["--sidecar=classic"]);
    assert_eq!(output.status.code(), Some(64));
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(
        told.contains("document 1, Job default/x") && told.contains("--sidecar native"),
        "{told}"
    );
}

#[test]
fn the_label_on_the_workload_alone_is_told() {
    let files = Files::new();
    let input = "apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: x\n  labels:\n    \
                 ctrlmesh.kusionstack.io/enable-proxy: 'true'\nspec:\n  template:\n    spec: {containers: [{name: a}]}\n";
    let told = String::from_utf8(files.run(input, &[]).stderr).unwrap();
    assert!(told.contains("the label belongs on its pod template"), "{told}");
}

#[test]
fn bad_input_prints_nothing_and_says_where() {
    let files = Files::new();
    let refused = POD.replace("spec:\n", "spec:\n  hostNetwork: yes\n");
    for (input, more, wanted) in [
        (
            format!("{POD}---\n{refused}"),
            &[][..],
            "document 2, Pod default/one, cannot be injected",
        ),
        (format!("{POD}---\na: [b\n"), &[], "document 2"),
        (format!("{POD}---\na: 1\na: 2\n"), &[], "the key `a` occurs twice"),
        (format!("{POD}---\na: !secret x\n"), &[], "line 1: the tag `!secret`"),
        (format!("{POD}...\n{POD}"), &[], "a second document begins"),
        (POD.replace("image: app", "image: \"a\u{2028}b\""), &[], "document 1 has a line break"),
        (POD.replace("'true'", "true"), &[], "put it into quotes"),
        (POD.to_owned(), &["--proxy-uid=0"], "--proxy-uid"),
        (POD.to_owned(), &["--cluster-domain=a b"], "\"a b\" is not a DNS domain"),
        (POD.to_owned(), &["--proxy-image="], "is not an image reference"),
        (POD.to_owned(), &["--cluster-ca=/dev/null"], "--cluster-ca /dev/null: PEM certificates"),
        (POD.to_owned(), &["--mesh-ca-dir=/dev"], "--mesh-ca-dir"),
        (POD.to_owned(), &["--filename=/nowhere"], "--filename /nowhere"),
        ("#".repeat((16 << 20) + 1), &[], "more than 16777216 bytes"),
    ] {
        let first = more.first().map_or("", |flag| flag.split('=').next().unwrap());
        let output = files.run_without(first, &input, more);
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(64), "{told}");
        assert!(output.stdout.is_empty(), "{wanted}");
        assert!(told.contains(wanted), "no {wanted:?} in {told}");
    }
}

#[test]
fn the_proxy_is_told_the_clusters_domain() {
    let files = Files::new();
    let named = files.injected(POD, &["--cluster-domain=corp.example"]);
    assert!(named.contains("--cluster-domain=corp.example\n"), "{named}");
}

#[test]
fn no_key_but_the_mesh_cas_leaves() {
    let files = Files::new();
    let both =
        ["cluster/ca.key", "cluster/ca.crt"].map(|f| fs::read_to_string(files.path(f)).unwrap());
    let mixed = files.path("mixed.pem");
    fs::write(&mixed, both.concat()).unwrap();
    let flag = format!("--cluster-ca={}", mixed.display());
    let output = files.run_without("--cluster-ca", POD, &[&flag]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && text.contains("BEGIN CERTIFICATE"));
    assert!(!text.contains("PRIVATE KEY"), "the key of the cluster's CA was printed");
}

/// Plain scalars, and what kubectl's reader (sigs.k8s.io/yaml 1.6) makes of them.
#[test]
fn scalars_mean_what_they_mean_to_kubectl() {
    for (text, wanted) in [
        ("yes", json!(true)),
        ("Off", json!(false)),
        ("y", json!(true)),
        ("'yes'", json!("yes")),
        ("!!str yes", json!("yes")),
        ("~", json!(null)),
        ("", json!(null)),
        ("0644", json!(420)),
        ("\"0644\"", json!("0644")),
        ("0o17", json!(15)),
        ("0x1F", json!(31)),
        ("0b11", json!(3)),
        ("089", json!(89)),
        ("1_000", json!(1000)),
        ("-5", json!(-5)),
        ("+5", json!(5)),
        ("--5", json!("--5")),
        ("-", json!([null])),
        ("18446744073709551615", json!(u64::MAX)),
        ("-9223372036854775808", json!(i64::MIN)),
        ("1e3", json!(1000)),
        ("1.5", json!(1.5)),
        (".5", json!(0.5)),
        ("1.", json!(1)),
        ("1.2.3", json!("1.2.3")),
        ("10m", json!("10m")),
        ("2024-01-02", json!("2024-01-02")),
        ("12:30:45", json!("12:30:45")),
        ("|\n  yes", json!("yes\n")),
    ] {
        let read =
            yaml::parse(&format!("v: {text}\n").replace("v: -\n", "v:\n-\n")).unwrap().unwrap();
        assert_eq!(read["v"], wanted, "{text}");
    }
    assert_eq!(yaml::parse("# nothing\n").unwrap(), None);
    assert_eq!(
        yaml::parse("a: &x {b: 1}\nc: *x\nd: {<<: *x, e: 2}\n").unwrap().unwrap(),
        json!({ "a": { "b": 1 }, "c": { "b": 1 }, "d": { "b": 1, "e": 2 } })
    );
    assert_eq!(yaml::parse("1: a\nyes: b\n").unwrap().unwrap(), json!({ "1": "a", "true": "b" }));
    for bad in ["v: .inf", "? [a]\n: b", "a: *x", "<<: 3", "a: b: c"] {
        assert!(yaml::parse(bad).is_err(), "{bad}");
    }
}

#[test]
fn aliases_cannot_grow_without_bound() {
    let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..12 {
        let items = vec![format!("*a{}", level - 1); 10].join(", ");
        text.push_str(&format!("a{level}: &a{level} [{items}]\n"));
    }
    let error = yaml::parse(&text).unwrap_err();
    assert!(matches!(error, yaml::YamlError::TooLarge), "{error}");
}

fn values() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_filter_map("whole ones are integers", |f| {
            (f.is_finite() && f.fract() != 0.0).then(|| Value::from(f))
        }),
        "\\PC{0,12}".prop_map(Value::from),
        "[-+.0-9a-fxo_eEnNyY~:# ]{0,6}".prop_map(Value::from),
        prop::sample::select(vec![
            "yes", "no", "on", "off", "y", "n", "0644", "1_0", "null", "<<", "=", "a\nb\n", "---",
            "\u{2028}", "\u{85}", "\t", " x "
        ])
        .prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map("[-+.0-9a-z_~yn<]{0,4}", inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

#[test]
fn what_yaml_versions_read_differently_is_quoted() {
    for text in [
        "yes", "y", "off", "0644", "1_000", "0x1F", "12:30:45", "1e3", "089", "~", "=", "<<",
        "a: b",
    ] {
        let printed = yaml::print(&json!({ "v": [text] }));
        assert!(printed.starts_with("v:\n"), "JSON for {text}: {printed}");
        assert_eq!(yaml::parse(&printed).unwrap(), Some(json!({ "v": [text] })));
    }
    // JSON is the way out, not the way.
    let odd = json!({ "kind": "Pod", "text": "a\n\n  b\n", "long": "x ".repeat(99) });
    assert!(!yaml::print(&odd).starts_with('{'));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..Default::default() })]

    #[test]
    fn what_is_printed_reads_the_same(value in values()) {
        let text = yaml::print(&value);
        prop_assert_eq!(yaml::parse(&text).unwrap(), Some(value), "{}", text);
    }
}
