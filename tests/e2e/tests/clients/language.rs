//! The clients of five languages, in the settings that they have by themselves.

use std::{collections::BTreeMap, process::Command};

use anyhow::{Context, Result, ensure};
use ctrlmesh_e2e::{Program, go_clients, java_client, node_client, python_client};
use serde_json::Value;

use crate::direct::bed::{Bed, LIMIT, Way};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Language {
    /// fabric8: watches over WebSocket.
    Java,
    /// The official one: list and watch on two connections, no bookmarks.
    Node,
    /// The official one: HTTP/1.1, no bookmarks, compares no lists.
    Python,
    /// `kubernetes_asyncio`: the same.
    AsyncPython,
    /// kube-rs.
    Rust,
    /// client-go.
    Go,
}

/// A client that follows the ConfigMaps of a namespace.
pub(super) struct Follower {
    program: Program,
    /// The object whose event the record begins after.
    mark: String,
}

/// An event as a client tells of it: the type, the object's name, its version.
pub(super) type Told = (String, String, String);

impl Language {
    fn command(self) -> Result<Command> {
        let python = |program: &str| {
            let (python, client) = python_client()?;
            let mut command = Command::new(python);
            command.arg(client.with_file_name(program));
            Ok(command)
        };
        match self {
            Self::Java => java_client(),
            Self::Node => node_client(),
            Self::Python => python("client.py"),
            Self::AsyncPython => python("client_async.py"),
            Self::Rust => Ok(Command::new(env!("CARGO_BIN_EXE_kube-client"))),
            Self::Go => Ok(Command::new(go_clients()?)),
        }
    }

    /// The client, which is notified to do this.
    pub(super) fn start(self, bed: &Bed, way: &Way<'_>, args: &[&str]) -> Result<Program> {
        let mut command = self.command()?;
        command.args(args).args(["--namespace", &bed.namespace, "--kubeconfig"]);
        command.arg(way.kubeconfig(bed)?);
        bed.program(&format!("{self:?}"), &command)
    }

    /// An informer, or what the language has in place of one.
    pub(super) fn follow(
        self,
        bed: &Bed,
        way: &Way<'_>,
        selector: Option<&str>,
    ) -> Result<Follower> {
        let mut args = match self {
            Self::Java | Self::Node => vec!["informer"],
            Self::Python => vec!["listwatch", "--persist", "--without-bookmarks"],
            Self::AsyncPython => vec!["listwatch"],
            Self::Rust => vec!["reflector"],
            Self::Go => vec!["informer", "--wire"],
        };
        args.extend(selector.into_iter().flat_map(|selector| ["--selector", selector]));
        Ok(Follower { program: self.start(bed, way, &args)?, mark: String::new() })
    }
}

impl Follower {
    /// Creates an object with this label, and begins the record after its event.
    pub(super) fn mark(&mut self, name: &str) -> Result<()> {
        name.clone_into(&mut self.mark);
        self.wait_for("ADDED", name)
    }

    /// Waits for an event of an object since the mark, or of the mark itself.
    pub(super) fn wait_for(&self, kind: &str, name: &str) -> Result<()> {
        let is_it = |line: &Value| {
            let is_kind = line["type"] == kind || (kind == "ADDED" && line["type"] == "APPLIED");
            line["event"] == "wire" && is_kind && line["object"]["name"] == name
        };
        self.program.wait_for(LIMIT, is_it).map(drop).with_context(|| format!("{kind} {name}"))
    }

    /// All events since the mark.
    pub(super) fn record(&self) -> Vec<Told> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let told = |line: &Value| {
            let object = &line["object"];
            (text(&line["type"]), text(&object["name"]), text(&object["rv"]))
        };
        let lines = self.program.lines();
        let events = lines.iter().filter(|line| line["event"] == "wire").map(told);
        let events = events.filter(|(kind, ..)| kind != "BOOKMARK");
        events.skip_while(|(_, name, _)| *name != self.mark).skip(1).collect()
    }

    /// Name and version of what the client's store holds.
    pub(super) fn store(&mut self) -> Result<BTreeMap<String, String>> {
        let line = self.program.ask("", "store", LIMIT)?;
        let objects = line["objects"].as_array().context("a store has objects")?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        Ok(objects.iter().map(|object| (text(&object["name"]), text(&object["rv"]))).collect())
    }

    /// Waits until the store holds this.
    pub(super) fn until_store(&mut self, wanted: &BTreeMap<String, String>) -> Result<()> {
        let mut last = BTreeMap::new();
        let same = ctrlmesh_e2e::until("the store", LIMIT, || {
            last = self.store()?;
            Ok((last == *wanted).then_some(()))
        });
        same.with_context(|| format!("the store holds {last:?}, not {wanted:?}"))
    }

    /// How many lists the client has told of.
    pub(super) fn lists(&self) -> usize {
        self.program.lines().iter().filter(|line| line["event"] == "list").count()
    }

    /// Ends the client; it must have told of no 410.
    pub(super) fn end(self) -> Result<()> {
        let lines = self.program.finish(LIMIT)?;
        let expired = lines.iter().find(|line| {
            line["event"] == "watch-error" && (line["code"] == 410 || line["error"] == "Expired")
        });
        ensure!(expired.is_none(), "{expired:?}");
        Ok(())
    }
}
