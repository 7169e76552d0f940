//! The state that the tasks of a replica share.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::watch;

use super::{
    config::Config,
    configs::Configs,
    metrics::Metrics,
    serving::Serving,
    trust::{Purpose, SecretData, Trusted},
};
use ctrlmesh_base::process::accept_backoff::AcceptBackoff;
use ctrlmesh_policy::NamespaceLabels;

/// The state that the tasks of a replica share.
pub(super) struct Shared {
    pub(super) config: Config,
    pub(super) metrics: Metrics,
    /// The certificate of our own ports.
    pub(super) serving: Serving,
    /// Our own objects as the API server has them. `None` until all were listed once.
    pub(super) own: watch::Sender<Option<Arc<OwnObjects>>>,
    /// The ShardingConfigs as the API server has them. `None` until they were listed once.
    pub(super) configs: watch::Sender<Option<Arc<Configs>>>,
    /// The labels of all namespaces, as the API server had them a moment ago. `None` until they were
    /// listed once.
    pub(super) namespaces: watch::Sender<Option<Arc<NamespaceLabels>>>,
    /// The authorities to sign with: the last good ones.
    pub(super) trusted: watch::Sender<Option<Arc<Trusted>>>,
    pub(super) accept_backoff: Arc<AcceptBackoff>,
    problems: Mutex<BTreeMap<&'static str, String>>,
}

/// The objects of the manager's own that both replicas follow.
#[derive(Debug, Default)]
pub(super) struct OwnObjects {
    /// The Secret with the authorities. `None` if there is none.
    pub(super) secret: Option<StoredSecret>,
    /// The webhooks for pods. `None` if there is no such configuration.
    pub(super) hooks: Option<Vec<Hook>>,
    /// The webhooks for ShardingConfigs. Empty if there is no such configuration.
    pub(super) validating: Vec<Hook>,
    /// The addresses of the API server's Service.
    pub(super) addresses: Vec<IpAddr>,
}

/// The Secret as it is stored.
#[derive(Clone, PartialEq, Eq, derive_more::Debug)]
pub(super) struct StoredSecret {
    /// The resourceVersion.
    pub(super) version: String,
    #[debug(skip)]
    pub(super) data: SecretData,
}

/// A webhook of one of our configurations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hook {
    pub(super) name: String,
    /// The PEM certificates by which the API server verifies us.
    pub(super) ca_bundle: Vec<u8>,
}

impl Shared {
    pub(super) fn new(config: Config, metrics: Metrics, serving: Serving) -> Self {
        Self {
            config,
            metrics,
            serving,
            own: watch::Sender::new(None),
            configs: watch::Sender::new(None),
            namespaces: watch::Sender::new(None),
            trusted: watch::Sender::new(None),
            accept_backoff: Arc::default(),
            problems: Mutex::default(),
        }
    }

    #[cfg(test)]
    pub(super) fn for_tests() -> Self {
        #[derive(clap::Parser)]
        struct CommandLine {
            #[command(flatten)]
            args: super::config::ManagerArgs,
        }
        let images = ["--init-image=i", "--proxy-image=p"];
        let pod = ["--pod-name=one", "--pod-namespace=mesh"];
        let typed = ["manager"].iter().chain(&images).chain(&pod);
        let CommandLine { args } = clap::Parser::parse_from(typed);
        let config = Config::new(args).unwrap();
        Self::new(config, Metrics::new().0, Serving::new().unwrap())
    }

    /// The purpose of the authorities, in a cluster whose API server has these addresses.
    pub(super) fn purpose(&self, addresses: &[IpAddr]) -> Purpose {
        Purpose { addresses: addresses.to_vec(), ..self.config.purpose.clone() }
    }

    /// Notes the problem of a subject, or that it has none, and logs it if it is another.
    pub(super) fn note(&self, subject: &'static str, problem: Option<String>) {
        let mut problems = self.problems.lock();
        if problems.get(subject) == problem.as_ref() {
            return;
        }
        match problem {
            Some(problem) => {
                tracing::warn!(subject, problem, "degraded");
                problems.insert(subject, problem);
            }
            None => {
                tracing::info!(subject, "recovered");
                problems.remove(subject);
            }
        }
    }

    /// The problem of a subject.
    pub(super) fn problem(&self, subject: &str) -> Option<String> {
        self.problems.lock().get(subject).cloned()
    }
}
