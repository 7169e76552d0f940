//! The root and the patch that `ctrlmesh shard` writes: their text, each part with its reason.
//!
//! Hides YAML. Does not know why a part is there: the judgement says it.

use std::fmt::Write as _;

use serde_json::json;

use super::{
    args::By,
    before::{BEFORE, Before, label},
    facts::Workload,
    judge::{Judgement, Wanted},
};
use ctrlmesh_api::{Shared, SharedWrite, TargetKind};
use ctrlmesh_policy::Kind;

/// Lines of YAML, each below its reason.
#[derive(Default)]
struct RootLines(String);

impl RootLines {
    fn because(&mut self, indent: usize, reason: &str, line: &str) {
        let _ = writeln!(self.0, "{:indent$}# {reason}", "");
        self.line(indent, line);
    }

    fn line(&mut self, indent: usize, line: &str) {
        let _ = writeln!(self.0, "{:indent$}{line}", "");
    }
}

/// A text as a YAML scalar: as it is, if it can be read as nothing else.
fn scalar(text: &str) -> String {
    let is_plain = |at: u8| at.is_ascii_lowercase() || at.is_ascii_digit() || b"-./".contains(&at);
    let is_word = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"].contains(&text);
    let begins = text.starts_with(|first: char| first.is_ascii_lowercase());
    match begins && !is_word && text.bytes().all(is_plain) {
        true => text.to_owned(),
        false => json!(text).to_string(),
    }
}

/// The root.
pub(super) fn text(workload: &Workload, judgement: &Judgement, wanted: &Wanted) -> String {
    let kind = Kind::ShardingConfig.api_resource();
    let name = scalar(&workload.target.name);
    let mut lines = RootLines::default();
    lines.line(0, &format!("apiVersion: {}", kind.api_version));
    lines.line(0, &format!("kind: {}", kind.kind));
    lines.line(0, "metadata:");
    lines.line(2, &format!("name: {name}"));
    lines.line(2, &format!("namespace: {}", scalar(&workload.namespace)));
    lines.line(2, "annotations:");
    let before = serde_json::to_string(&Before::of(workload)).unwrap_or_default();
    let before = format!("{BEFORE}: '{}'", before.replace('\'', "''"));
    lines.because(4, "What `ctrlmesh unshard` gives back.", &before);
    lines.line(0, "spec:");
    controller(&mut lines, workload, judgement);
    if let Some(server) = &judgement.webhook {
        lines.because(2, &server.reason, "webhook:");
        lines.line(4, &format!("certDir: {}", json!(server.part.cert_dir)));
        lines.line(4, &format!("port: {}", server.part.port));
    }
    if !judgement.shared.is_empty() {
        lines.because(2, "All shards see these.", "shared:");
    }
    for shared in &judgement.shared {
        lines.because(2, &shared.reason, &format!("- {}", entry(&shared.part)));
    }
    lines.line(2, "root:");
    lines.because(
        4,
        &format!("The shards are {name}-1-normal, {name}-2-normal, and so on."),
        &format!("prefix: {name}"),
    );
    let target = format!("target: {{kind: {}, name: {name}}}", workload.target.kind.as_str());
    lines.because(4, "Its pods are the shards.", &target);
    lines.line(4, "auto:");
    lines.because(
        6,
        "A shard for each replica: kubectl scale changes their number.",
        "everyShardReplicas: 1",
    );
    by(&mut lines, judgement, wanted);
    lines.0
}

fn controller(lines: &mut RootLines, workload: &Workload, judgement: &Judgement) {
    if judgement.locks.is_empty() {
        let ring = format!("ring: {}", scalar(&workload.target.name));
        return lines.because(2, "The shards know each other by it, without a lock.", &ring);
    }
    lines.line(2, "controller:");
    lines.because(4, "Each shard elects its leader by a Lease of its own.", "locks:");
    for lock in &judgement.locks {
        lines.because(4, &lock.reason, &format!("- name: {}", scalar(&lock.part.name)));
        if let Some(namespace) = &lock.part.namespace {
            lines.line(6, &format!("namespace: {}", scalar(namespace)));
        }
    }
}

fn by(lines: &mut RootLines, judgement: &Judgement, wanted: &Wanted) {
    let by = format!("by: {}", wanted.by.as_str());
    if wanted.by == By::Namespace {
        return lines.because(6, "A namespace is in one shard, with all objects in it.", &by);
    }
    lines.because(6, "An object is in one shard, by its uid.", &by);
    lines.line(4, "resourceSelector:");
    for resource in &judgement.resources {
        let part = &resource.part;
        let of = format!(
            "- relateResources: [{{apiGroups: [{}], resources: [{}]}}]",
            scalar(part.group()),
            scalar(part.resource())
        );
        lines.because(4, &resource.reason, &of);
    }
}

fn entry(shared: &Shared) -> String {
    let all = |names: &[String]| {
        let names: Vec<_> = names.iter().map(|name| scalar(name)).collect();
        names.join(", ")
    };
    let write = match shared.write {
        Some(SharedWrite::All) => ", write: All",
        Some(SharedWrite::Owner) | None => "",
    };
    format!(
        "{{apiGroups: [{}], resources: [{}], namespaces: [{}]{write}}}",
        all(&shared.api_groups),
        all(&shared.resources),
        all(&shared.namespaces)
    )
}

/// The patch of the workload.
pub(super) fn patch_text(workload: &Workload, wanted: &Wanted) -> String {
    let mut lines = RootLines::default();
    lines.line(0, "spec:");
    lines.because(2, "A pod for each shard.", &format!("replicas: {}", wanted.shards));
    if workload.target.kind == TargetKind::Deployment {
        lines.because(
            2,
            "A new pod is ready before an old one is deleted: no shard is without one.",
            "strategy:",
        );
        lines.line(4, "type: RollingUpdate");
        lines.line(4, "rollingUpdate:");
        lines.line(6, "maxUnavailable: 0");
        lines.line(6, "maxSurge: 1");
    }
    for (indent, line) in [(2, "template:"), (4, "metadata:"), (6, "labels:")] {
        lines.line(indent, line);
    }
    lines.because(8, "The manager gives such pods a proxy.", &format!("{}: \"true\"", label()));
    lines.0
}
