//! The informers of a seed: unmodified clients, each a program that prints what it is notified.

use std::{path::Path, process::Command, time::Duration};

use anyhow::{Context, Result, ensure};
use ctrlmesh_e2e::{Program, go_clients, java_client, python_client};
use serde_json::Value;

use crate::oracle::{
    history::{Mark, Resource},
    plan::{Client, Encoding, Plan},
    rule::Tenants,
    story::{Expected, Store, Story, entries, handled},
};

/// Longer than anything takes on a busy machine, a restart and client-go's back-off included.
pub(crate) const LIMIT: Duration = Duration::from_secs(90);

/// The API server tells everybody after a minute where they are: the proxy must be earlier.
const POSITION_LIMIT: Duration = Duration::from_secs(30);

/// What an informer asks for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Selectors {
    pub(crate) label: Option<String>,
    pub(crate) field: Option<String>,
    pub(crate) shard: Option<String>,
}

pub(crate) struct Informer {
    pub(crate) name: String,
    client: Client,
    program: Program,
}

impl Informer {
    /// Starts the seed's client on all namespaces.
    pub(crate) fn start(
        plan: &Plan,
        name: &str,
        resource: Resource,
        kubeconfig: &Path,
        selectors: &Selectors,
        directory: &Path,
    ) -> Result<Self> {
        let mut command = command(plan, resource)?;
        command.arg("--kubeconfig").arg(kubeconfig);
        match &plan.inside {
            Some(namespace) => drop(command.arg(format!("--namespace={namespace}"))),
            None if matches!(plan.client, Client::Rust { .. }) => {}
            None => drop(command.arg("--all-namespaces")),
        }
        let flags = [
            ("selector", &selectors.label),
            ("field-selector", &selectors.field),
            ("shard-selector", &selectors.shard),
        ];
        for (flag, value) in flags {
            if let Some(value) = value {
                command.arg(format!("--{flag}={value}"));
            }
        }
        let name = format!("{name}, {resource:?}");
        let log = directory.join(format!("{}.log", name.replace([',', ' ', '='], "-")));
        let program = Program::start(&name, &command, &log)?;
        Ok(Self { name, client: plan.client, program })
    }

    pub(crate) fn wait_synced(&self) -> Result<()> {
        let event = if matches!(self.client, Client::Go { .. }) { "synced" } else { "list" };
        self.program.wait_for(LIMIT, |line| line["event"] == event).map(drop)
    }

    /// Waits until its store has this version or a later one of the object.
    pub(crate) fn wait_for(&self, mark: &Mark) -> Result<()> {
        let has = |object: &Value| {
            let rv = object["rv"].as_str().and_then(|rv| rv.parse::<u64>().ok());
            object["uid"] == *mark.uid && rv >= Some(mark.rv)
        };
        let is_go = matches!(self.client, Client::Go { .. });
        let told = |line: &Value| match line["event"].as_str() {
            // Its handlers are told after its store.
            Some("added" | "updated") => has(&line["object"]),
            Some("wire") if !is_go => line["type"] != "DELETED" && has(&line["object"]),
            Some("list") if !is_go => {
                line["objects"].as_array().is_some_and(|objects| objects.iter().any(has))
            }
            _ => false,
        };
        let seen = self.program.wait_for(LIMIT, told);
        seen.map(drop).with_context(|| format!("{} is not told of {mark:?}", self.name))
    }

    /// Waits until it was told a position at or behind this one.
    pub(crate) fn wait_for_position(&self, rv: u64) -> Result<()> {
        let is_behind = |line: &Value| {
            let at = line["object"]["rv"].as_str().and_then(|rv| rv.parse::<u64>().ok());
            line["event"] == "wire" && at >= Some(rv)
        };
        let seen = self.program.wait_for(POSITION_LIMIT, is_behind);
        seen.map(drop).with_context(|| format!("{} is not told where {rv} is", self.name))
    }

    /// Waits until the informer's messages make up a store that `is_right` takes. `is_right`
    /// answers with the fault that it found.
    pub(crate) fn wait_for_store(
        &self,
        tenants: &Tenants,
        is_right: impl Fn(&Store) -> Result<(), String>,
    ) -> Result<()> {
        let mut wrong = String::new();
        let is_go = matches!(self.client, Client::Go { .. });
        let seen = self.program.wait_until(LIMIT, |lines| {
            let store = if is_go {
                handled(lines, tenants)
            } else {
                Story::read(lines, tenants, self.expected(false)).map(|story| story.replayed)
            };
            let answer = store.map_err(|error| format!("{error:#}")).and_then(|s| is_right(&s));
            answer.map_err(|text| wrong = text).ok()
        });
        seen.with_context(|| format!("{} does not get there: {wrong}", self.name))
    }

    /// What its program says that its store holds.
    pub(crate) fn store(&mut self, tenants: &Tenants) -> Result<Store> {
        entries(&self.program.ask("", "store", LIMIT)?, tenants)
    }

    pub(crate) fn story(&self, tenants: &Tenants, is_steady: bool) -> Result<Story> {
        Story::read(&self.program.lines(), tenants, self.expected(is_steady))
            .with_context(|| self.name.clone())
    }

    /// Whether it was given what it asked for, not what every server has.
    pub(crate) fn has_encoding(&self, plan: &Plan, resource: Resource) -> Result<()> {
        let Client::Go { encoding, .. } = plan.client else { return Ok(()) };
        let wanted = match encoding {
            Encoding::Cbor => "application/cbor",
            Encoding::Metadata => "application/vnd.kubernetes.protobuf",
            Encoding::Protobuf if resource == Resource::ConfigMaps => {
                "application/vnd.kubernetes.protobuf"
            }
            Encoding::Protobuf | Encoding::Json => "application/json",
        };
        let is_right = |line: &Value| {
            line["event"] == "answer"
                && line["status"] == 200
                && line["contentType"].as_str().is_some_and(|kind| kind.starts_with(wanted))
        };
        let lines = self.program.lines();
        ensure!(lines.iter().any(is_right), "{}: no answer in {wanted}", self.name);
        Ok(())
    }

    fn expected(&self, is_steady: bool) -> Expected {
        let has_bookmarks = match self.client {
            Client::Go { .. } => true,
            Client::Rust { .. } => false,
            Client::Python { bookmarks, .. } | Client::Java { bookmarks } => bookmarks,
        };
        Expected { is_steady, has_bookmarks }
    }

    pub(crate) fn lines(&self) -> Vec<Value> {
        self.program.lines()
    }
}

fn command(plan: &Plan, resource: Resource) -> Result<Command> {
    let (plural, kind) = match resource {
        Resource::ConfigMaps => ("v1/configmaps", "v1/ConfigMap"),
        Resource::Widgets => {
            ("demo.example.com/v1alpha1/widgets", "demo.example.com/v1alpha1/Widget")
        }
    };
    let resource_flag = format!("--resource={plural}");
    Ok(match plan.client {
        Client::Go { watch_list, encoding, http1 } => {
            let mut command = Command::new(go_clients()?);
            command.args(["informer", "--wire", "--content", &resource_flag]);
            command.arg(format!("--watchlist={watch_list}"));
            command.args(http1.then_some("--http1"));
            match encoding {
                Encoding::Protobuf => {}
                Encoding::Json => drop(command.arg("--json")),
                Encoding::Metadata => drop(command.arg("--metadata")),
                Encoding::Cbor => {
                    command.arg("--dynamic");
                    command.env("KUBE_FEATURE_ClientsAllowCBOR", "true");
                    command.env("KUBE_FEATURE_ClientsPreferCBOR", "true");
                }
            }
            if plan.has_detector() {
                // client-go then lists after a streamed list, and panics when the two differ.
                command.env("KUBE_WATCHLIST_INCONSISTENCY_DETECTOR", "true");
            }
            command
        }
        Client::Rust { streaming } => {
            let mut command = Command::new(env!("CARGO_BIN_EXE_kube-client"));
            command.args(["reflector", &format!("--kind={kind}")]);
            command.args(streaming.then_some("--streaming"));
            command
        }
        Client::Python { pages, bookmarks } => {
            let (python, program) = python_client()?;
            let mut command = Command::new(python);
            command.arg(program).args(["listwatch", "--content", "--persist"]);
            command.arg(resource_flag);
            command.arg(format!("--page-size={}", if pages { 7 } else { 500 }));
            command.args((!bookmarks).then_some("--without-bookmarks"));
            command
        }
        Client::Java { bookmarks } => {
            let mut command = java_client()?;
            command.args(["listwatch", &resource_flag]);
            command.args((!bookmarks).then_some("--without-bookmarks"));
            command
        }
    })
}
