//! The API server's audit log: the requests it received.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::programs::Lines;

/// The part of each request that the audit log records. Requests of the API server to itself are
/// left out, and so is the stage RequestReceived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AuditLevel {
    /// The user, the request and the status of the response.
    #[default]
    Metadata,
    /// The objects too, sent and returned.
    RequestResponse,
    /// No entries, for measurements.
    None,
}

impl AuditLevel {
    pub(crate) fn policy(self) -> Value {
        let level = match self {
            Self::Metadata => "Metadata",
            Self::RequestResponse => "RequestResponse",
            Self::None => "None",
        };
        json!({
            "apiVersion": "audit.k8s.io/v1",
            "kind": "Policy",
            "omitStages": ["RequestReceived"],
            "omitManagedFields": true,
            "rules": [{ "level": "None", "users": ["system:apiserver"] }, { "level": level }],
        })
    }
}

/// One line of the audit log (`audit.k8s.io/v1` Event).
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AuditEntry {
    /// The same for all stages of one request.
    #[serde(rename = "auditID")]
    pub audit_id: String,
    /// `ResponseStarted` (streams only), `ResponseComplete` or `Panic`.
    pub stage: String,
    /// Path and query as received.
    #[serde(rename = "requestURI")]
    pub request_uri: String,
    /// The Kubernetes verb, such as `deletecollection`.
    pub verb: String,
    /// The authenticated user.
    pub user: AuditUser,
    /// `None` if the client sent none.
    pub user_agent: Option<String>,
    /// The client's address and those of `X-Forwarded-For`.
    #[serde(rename = "sourceIPs", default)]
    pub source_ips: Vec<String>,
    /// `None` if the request is not for a resource.
    pub object_ref: Option<AuditObject>,
    /// The status of the response.
    pub response_status: Option<AuditStatus>,
    /// Only with [`AuditLevel::RequestResponse`].
    pub request_object: Option<Value>,
    /// Only with [`AuditLevel::RequestResponse`].
    pub response_object: Option<Value>,
    /// RFC 3339 with microseconds.
    pub request_received_timestamp: String,
    /// RFC 3339 with microseconds.
    pub stage_timestamp: String,
    /// What admission noted, as `WEBHOOK/KEY` what a webhook did.
    #[serde(default)]
    pub annotations: BTreeMap<String, String>,
}

/// The user of an audit entry.
#[derive(Clone, Debug, Deserialize)]
pub struct AuditUser {
    /// Such as `system:serviceaccount:NAMESPACE:NAME`; empty if the credentials were refused.
    #[serde(default)]
    pub username: String,
    /// Such as `system:authenticated`.
    #[serde(default)]
    pub groups: Vec<String>,
}

/// The object of an audit entry; fields that the request does not name are empty.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AuditObject {
    /// The plural, such as `configmaps`.
    pub resource: String,
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
    /// The group; empty for the core group.
    pub api_group: String,
    /// Such as `status`.
    pub subresource: String,
}

/// The status of the response in an audit entry.
#[derive(Clone, Debug, Deserialize)]
pub struct AuditStatus {
    /// The HTTP status code.
    pub code: u16,
}

/// The audit log of one API server.
#[derive(Clone, Debug)]
pub struct AuditLog {
    path: PathBuf,
}

impl AuditLog {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// The file: one JSON object per line.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// All entries so far.
    ///
    /// # Errors
    ///
    /// When the log cannot be read.
    pub fn entries(&self) -> Result<Vec<AuditEntry>> {
        let mut reader = self.reader()?;
        let mut entries = Vec::new();
        while let Some(entry) = reader.next_written()? {
            entries.push(entry);
        }
        Ok(entries)
    }

    /// A reader that starts at the first entry and can wait for more.
    ///
    /// # Errors
    ///
    /// When the log cannot be opened.
    pub fn reader(&self) -> Result<AuditReader> {
        Ok(AuditReader { lines: Lines::open(&self.path)? })
    }
}

/// Reads the audit log from its start and follows it.
pub struct AuditReader {
    lines: Lines,
}

impl AuditReader {
    /// The next entry already written. `None` if there is none yet.
    ///
    /// # Errors
    ///
    /// When the log cannot be read.
    pub fn next_written(&mut self) -> Result<Option<AuditEntry>> {
        let Some(line) = self.lines.next_written()? else { return Ok(None) };
        let entry = serde_json::from_str(&line);
        entry.map(Some).with_context(|| format!("reading an audit entry: {line}"))
    }

    /// The next entry that `wanted` accepts; skips the others; waits at most `limit`.
    ///
    /// # Errors
    ///
    /// When there is none in time, or the log cannot be read.
    pub fn wait_for(
        &mut self,
        limit: Duration,
        mut wanted: impl FnMut(&AuditEntry) -> bool,
    ) -> Result<AuditEntry> {
        let deadline = Instant::now() + limit;
        loop {
            while let Some(entry) = self.next_written()? {
                if wanted(&entry) {
                    return Ok(entry);
                }
            }
            self.lines.wait(deadline).with_context(|| {
                format!("the audit log has no such entry after {} s", limit.as_secs())
            })?;
        }
    }
}
