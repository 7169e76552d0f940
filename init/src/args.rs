//! The command line: the one place where flags are declared, written and read.

use std::ffi::OsString;
use std::num::NonZeroU16;

use clap::builder::BoolishValueParser;
use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches, Parser};

use crate::plan::{BackendChoice, Inbound, Plan, PlanError, ProxyUid, Upstream};

impl Plan {
    /// The arguments of the init container that carries out this plan.
    ///
    /// Every value is written out, defaults included, so that another version's defaults change
    /// nothing.
    pub fn to_args(&self) -> Vec<String> {
        let mut args = vec![
            format!("--proxy-uid={}", self.proxy_uid()),
            format!("--outbound-port={}", self.outbound_port()),
            format!("--backend={}", self.backend()),
        ];
        args.extend(self.upstreams().iter().map(|upstream| format!("--upstream={upstream}")));
        args.extend(self.inbound().map(|inbound| format!("--inbound={inbound}")));
        args
    }

    /// Reads the arguments that [`Plan::to_args`] writes (no program name in front).
    pub fn from_args<I, S>(args: I) -> Result<Self, clap::Error>
    where
        I: IntoIterator<Item = S>,
        S: Into<OsString>,
    {
        let program = OsString::from("ctrlmesh-init");
        let line = std::iter::once(program).chain(args.into_iter().map(Into::into));
        Invocation::from_command_line(line).map(|invocation| invocation.plan)
    }
}

/// One run of `ctrlmesh-init`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Invocation {
    /// The wanted rules.
    pub plan: Plan,
    /// The action to carry out.
    pub action: Action,
}

/// The action of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Put the rules in place and prove them.
    Apply,
    /// Remove our rules.
    Clean,
    /// Print the rules.
    DryRun,
}

impl Invocation {
    /// Reads a command line, program name first, and the `CTRLMESH_*` environment.
    pub fn from_command_line<I, S>(line: I) -> Result<Self, clap::Error>
    where
        I: IntoIterator<Item = S>,
        S: Into<OsString> + Clone,
    {
        let flags = Flags::from_arg_matches(&command().try_get_matches_from(line)?)?;
        flags.check().map_err(|error| command().error(ErrorKind::ValueValidation, error))
    }
}

/// The command with its flags; tests compare its help and its list of options with golden files.
pub fn command() -> clap::Command {
    Flags::command().mut_args(|arg| arg.hide_env_values(true))
}

/// Redirects the pod's connections to the API server to the ctrlmesh proxy, proves it by traffic, and ends.
///
/// Exit codes: 0 done; 64 bad arguments; 69 iptables or the network is not usable; 70 the rules
/// read back differ; 77 NET_ADMIN is missing; 95 a test connection was not intercepted.
#[derive(Debug, Parser)]
#[command(name = "ctrlmesh-init", version, term_width = 100)]
struct Flags {
    /// API server to intercept; may be repeated; a name means all its addresses [default:
    /// KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT]
    #[arg(long, env = "CTRLMESH_UPSTREAM", value_name = "HOST:PORT", value_delimiter = ',')]
    upstream: Vec<Upstream>,

    /// Numeric user of the proxy, whose connections are not redirected
    #[arg(long, env = "CTRLMESH_PROXY_UID", value_name = "UID", default_value_t = ProxyUid::DEFAULT)]
    proxy_uid: ProxyUid,

    /// Port of the proxy's listener on loopback for connections to the API server
    #[arg(long, env = "CTRLMESH_OUTBOUND_PORT", value_name = "PORT", default_value = "5443")]
    outbound_port: NonZeroU16,

    /// The pod's webhook port PORT to redirect too, to the proxy's port LISTENER
    #[arg(long, env = "CTRLMESH_INBOUND", value_name = "PORT:LISTENER")]
    inbound: Option<Inbound>,

    /// The iptables backend; auto uses nft, or legacy if nft is shown not to work
    #[arg(long, env = "CTRLMESH_BACKEND", value_enum, default_value_t = BackendChoice::Auto)]
    backend: BackendChoice,

    /// Remove the rules instead; open intercepted connections break
    #[arg(
        long,
        env = "CTRLMESH_CLEAN",
        value_parser = BoolishValueParser::new(),
        conflicts_with = "dry_run"
    )]
    clean: bool,

    /// Print the iptables-restore text of each family and change nothing
    #[arg(long, env = "CTRLMESH_DRY_RUN", value_parser = BoolishValueParser::new())]
    dry_run: bool,
}

impl Flags {
    fn check(self) -> Result<Invocation, PlanError> {
        let plan = Plan::new(
            self.proxy_uid,
            self.outbound_port,
            self.upstream,
            self.inbound,
            self.backend,
        )?;
        let action = match (self.clean, self.dry_run) {
            (true, _) => Action::Clean,
            (false, true) => Action::DryRun,
            (false, false) => Action::Apply,
        };
        Ok(Invocation { plan, action })
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use proptest::prelude::*;

    use super::*;

    fn upstreams() -> impl Strategy<Value = Vec<Upstream>> {
        let address = any::<IpAddr>().prop_map(|address| address.to_string());
        let host = prop_oneof![address, "[a-z][a-z0-9]{0,8}(\\.[a-z][a-z0-9]{0,8}){0,3}"];
        let upstream = (host, 1..=u16::MAX).prop_filter_map("an upstream", |(host, port)| {
            Upstream::new(&host, &port.to_string()).ok()
        });
        prop::collection::vec(upstream, 0..6)
    }

    fn inbound() -> impl Strategy<Value = Option<Inbound>> {
        prop::option::of((1..=u16::MAX, 1..=u16::MAX).prop_filter_map("two ports", |(a, b)| {
            Inbound::new(a.try_into().ok()?, b.try_into().ok()?).ok()
        }))
    }

    fn plans() -> impl Strategy<Value = Plan> {
        let backend = prop::sample::select(vec![
            BackendChoice::Auto,
            BackendChoice::Nft,
            BackendChoice::Legacy,
        ]);
        (1..u32::MAX, 1..=u16::MAX, upstreams(), inbound(), backend).prop_filter_map(
            "a plan",
            |(uid, port, upstreams, inbound, backend)| {
                let port = port.try_into().ok()?;
                Plan::new(ProxyUid::new(uid).ok()?, port, upstreams, inbound, backend).ok()
            },
        )
    }

    proptest! {
        #[test]
        fn i01_what_the_injector_writes_is_what_init_reads(plan in plans()) {
            prop_assert_eq!(Plan::from_args(plan.to_args()).unwrap(), plan);
        }
    }

    #[test]
    fn defaults_are_the_documented_ones() {
        let plan = Plan::from_args::<_, &str>([]).unwrap();
        assert_eq!(plan.to_args(), ["--proxy-uid=1359", "--outbound-port=5443", "--backend=auto"]);
    }

    /// Arguments, and the words that the error must contain.
    const BAD: &[(&[&str], &[&str])] = &[
        (&["--upstream=127.0.0.1:443"], &["--upstream", "127.0.0.1 is a loopback address"]),
        (&["--upstream=127.0.0.1:5443"], &["127.0.0.1 is a loopback address"]),
        (&["--upstream=[::1]:443"], &["::1 is a loopback address"]),
        (&["--upstream=[::ffff:127.0.0.1]:443"], &["127.0.0.1 is a loopback address"]),
        (&["--upstream=0.0.0.0:443"], &["the unspecified address"]),
        (&["--upstream=[::]:443"], &["the unspecified address"]),
        (&["--upstream=224.0.0.1:443"], &["a multicast address"]),
        (&["--upstream=[ff02::1]:443"], &["a multicast address"]),
        (&["--upstream=255.255.255.255:443"], &["the broadcast address"]),
        (&["--upstream=[fe80::1]:443"], &["a link-local address"]),
        (&["--upstream=fd00::1:443"], &["`fd00::1:443`", "as [ADDRESS]:PORT"]),
        (&["--upstream=10.0.0.1"], &["`10.0.0.1` has no port", "HOST:PORT"]),
        (&["--upstream=10.0.0.1:0"], &["`0` is not a number from 1 to 65535"]),
        (&["--upstream=10.0.0.1:65536"], &["`65536` is not a number"]),
        (&["--upstream=10.0.0.256:443"], &["`10.0.0.256` is neither"]),
        (&["--upstream=a b:443"], &["`a b` is neither"]),
        (&["--upstream=[name]:443"], &["`[name]` is neither"]),
        (&["--upstream=:443"], &["`` is neither"]),
        (&["--proxy-uid=0"], &["--proxy-uid", "`0` is not a numeric unprivileged user"]),
        (&["--proxy-uid=4294967295"], &["is not a numeric unprivileged user"]),
        (&["--proxy-uid=nobody"], &["`nobody` is not a numeric"]),
        (&["--proxy-uid=-1"], &["`-1` is not a numeric"]),
        (&["--outbound-port=0"], &["--outbound-port"]),
        (&["--inbound=9443"], &["`9443` is not PORT:LISTENER"]),
        (&["--inbound=9443:0"], &["`9443:0` is not PORT:LISTENER"]),
        (&["--inbound=9443:9443"], &["port 9443 is used twice"]),
        (&["--inbound=9443:5443"], &["port 5443 is used twice: the listener"]),
        (&["--inbound=5443:5445"], &["port 5443 is used twice: the intercepted port"]),
        (&["--backend=bpf"], &["--backend", "auto, nft, legacy"]),
        (&["--clean", "--dry-run"], &["cannot be used with"]),
        (&["extra"], &["unexpected argument"]),
    ];

    #[test]
    fn bad_values_are_told_with_the_field_and_the_remedy() {
        let long = vec!["--upstream=10.0.0.1:1"; crate::plan::MAX_UPSTREAMS + 1];
        let long: (&[&str], &[&str]) =
            (&long, &["65 upstream addresses are too many: the limit is 64"]);
        for (args, wanted) in BAD.iter().chain([&long]) {
            let told = Plan::from_args(*args).unwrap_err();
            assert!(told.use_stderr());
            let told = told.to_string();
            for wanted in *wanted {
                assert!(told.contains(wanted), "{args:?} says\n{told}\nwithout `{wanted}`");
            }
        }
    }
}
