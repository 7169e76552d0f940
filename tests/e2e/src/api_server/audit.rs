//! What the API server says was asked of it.

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::programs::Lines;

/// How much of each request the audit log tells. Requests that the API server makes to itself are
/// left out, and so is the stage RequestReceived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AuditLevel {
    /// Who asked what and which status it got.
    #[default]
    Metadata,
    /// The objects too, those sent and those returned.
    RequestResponse,
    /// Nothing, for measurements.
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
    /// `ResponseStarted` (streams alone), `ResponseComplete` or `Panic`.
    pub stage: String,
    /// Path and query as the server got them.
    #[serde(rename = "requestURI")]
    pub request_uri: String,
    /// The Kubernetes verb, such as `deletecollection`.
    pub verb: String,
    /// Who was authenticated.
    pub user: AuditUser,
    /// Absent when the client sent none.
    pub user_agent: Option<String>,
    /// The client's address and those of `X-Forwarded-For`.
    #[serde(rename = "sourceIPs", default)]
    pub source_ips: Vec<String>,
    /// Absent when the request is not for a resource.
    pub object_ref: Option<AuditObject>,
    /// The answer's status.
    pub response_status: Option<AuditStatus>,
    /// With [`AuditLevel::RequestResponse`].
    pub request_object: Option<Value>,
    /// With [`AuditLevel::RequestResponse`].
    pub response_object: Option<Value>,
    /// RFC 3339 with microseconds.
    pub request_received_timestamp: String,
    /// RFC 3339 with microseconds.
    pub stage_timestamp: String,
}

/// The user of an audit entry.
#[derive(Clone, Debug, Deserialize)]
pub struct AuditUser {
    /// Such as `system:serviceaccount:NAMESPACE:NAME`; empty when the credentials were refused.
    #[serde(default)]
    pub username: String,
    /// Such as `system:authenticated`.
    #[serde(default)]
    pub groups: Vec<String>,
}

/// The object of an audit entry; what a request does not name is empty.
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

/// The answer's status in an audit entry.
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

    /// The file: one JSON object a line.
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
    /// The next entry that is written already.
    ///
    /// # Errors
    ///
    /// When the log cannot be read.
    pub fn next_written(&mut self) -> Result<Option<AuditEntry>> {
        let Some(line) = self.lines.next_written()? else { return Ok(None) };
        let entry = serde_json::from_str(&line);
        entry.map(Some).with_context(|| format!("reading an audit entry: {line}"))
    }

    /// The next entry that `wanted` takes; passes over the others; waits for it at most `limit`.
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
