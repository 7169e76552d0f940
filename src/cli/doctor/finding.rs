//! Findings, and the table of the checks that they come from.

use serde::Serialize;
use strum::{Display, VariantArray};

use super::facts::{CannotLook, Looked};

/// The result of one check of one subject.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The check.
    pub check: Check,
    /// The weight.
    pub severity: Severity,
    /// The object that was looked at.
    pub subject: String,
    /// The state of the subject, a sentence.
    pub says: String,
    /// The remedy, a sentence. `None` if all is well.
    pub fix: Option<String>,
}

/// The weight of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Display, Serialize)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum Severity {
    /// All is well.
    Ok,
    /// Something is worth a look, or could not be looked at.
    Warning,
    /// A pod is not part of the mesh, or will not be, although it should.
    Error,
}

/// Declares each check once: its id, and the thing that it looks at.
macro_rules! checks {
    ($($id:ident $name:ident $about:literal;)*) => {
        /// A check. Its id is stable: one that is gone leaves its id unused.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, VariantArray)]
        pub enum Check {
            $(#[doc = $about] $name,)*
        }

        impl Check {
            /// The id.
            pub fn id(self) -> &'static str {
                match self { $(Self::$name => stringify!($id),)* }
            }

            /// The thing that is looked at.
            pub fn about(self) -> &'static str {
                match self { $(Self::$name => $about,)* }
            }
        }
    };
}

checks! {
    D01 ApiServer "the API server answers";
    D02 Clock "this machine's clock, and the API server's";
    D03 Definition "the definition of ShardingConfigs";
    D04 Webhooks "the MutatingWebhookConfiguration";
    D05 CaBundle "the caBundle of each webhook";
    D06 Deployment "the replicas of the manager";
    D07 Lease "the leader of the manager";
    D08 Namespaces "the namespaces of the mesh";
    D09 Bundle "the bundle of a namespace";
    D10 Rights "the rights of a namespace's proxies";
    D11 NotInjected "pods that ask for injection";
    D12 NotLabelled "pods that a ShardingConfig selects";
    D13 Choice "the ShardingConfig of injected pods";
    D14 Malformed "the ShardingConfigs of a namespace";
    D15 Quota "quotas on CPU limits";
    D16 LimitRange "default CPU limits";
    D17 PodSecurity "the Pod Security level, and the pods' mode";
    D18 Refused "pods that could not be created";
    D19 Pod "the pod, and its mode";
    D20 Init "the pod's redirect rules";
    D21 Proxy "the pod's proxy";
    D22 Readyz "the proxy answers";
    D23 Policy "the policy of the proxy";
    D24 Certificate "the certificate of the proxy";
    D25 NotAfter "the end of the proxy's certificate";
    D26 User "the user of the proxy";
    D27 Files "the files of this proxy";
    D28 Network "the NetworkPolicies, and the reviews of webhooks";
    D29 PodsRight "the right of proxies to watch pods";
    D30 Webhook "the reviews of the pod";
    D31 WebhookCertificate "the end of the webhook server's certificate";
    D32 Services "the Services of webhook configurations";
    D33 LeasesRight "the right of proxies to Leases";
    D34 Locks "the locks of shards";
    D35 LocksRight "the right of shards to their locks";
    D36 Writes "the writes into namespaces of other shards";
    D37 Related "the resources that belong to limited objects";
}

/// Findings under collection.
#[derive(Debug, Default)]
pub(super) struct Findings(pub(super) Vec<Finding>);

impl Findings {
    /// Adds a finding of severity Ok.
    pub(super) fn ok(&mut self, check: Check, subject: impl Into<String>, says: impl Into<String>) {
        self.add(check, Severity::Ok, subject.into(), says.into(), None);
    }

    /// Adds a finding of severity Warning.
    pub(super) fn warning(
        &mut self,
        check: Check,
        subject: impl Into<String>,
        says: impl Into<String>,
        fix: impl Into<String>,
    ) {
        self.add(check, Severity::Warning, subject.into(), says.into(), Some(fix.into()));
    }

    /// Adds a finding of severity Error.
    pub(super) fn error(
        &mut self,
        check: Check,
        subject: impl Into<String>,
        says: impl Into<String>,
        fix: impl Into<String>,
    ) {
        self.add(check, Severity::Error, subject.into(), says.into(), Some(fix.into()));
    }

    /// The thing that was looked at; `None`, and a finding, if it could not be.
    pub(super) fn seen<'f, T>(
        &mut self,
        check: Check,
        subject: &str,
        looked: &'f Looked<T>,
    ) -> Option<&'f T> {
        looked.as_ref().map_err(|why| self.unseen(check, subject, why)).ok()
    }

    fn unseen(&mut self, check: Check, subject: &str, why: &CannotLook) {
        let fix = match why {
            CannotLook::Right { .. } => {
                "have that right granted, or have someone run this who has it"
            }
            CannotLook::Failed(_) => "run this again once the API server answers that request",
        };
        self.warning(check, subject, why.to_string(), fix);
    }

    fn add(
        &mut self,
        check: Check,
        severity: Severity,
        subject: String,
        says: String,
        fix: Option<String>,
    ) {
        self.0.push(Finding { check, severity, subject, says, fix });
    }
}
