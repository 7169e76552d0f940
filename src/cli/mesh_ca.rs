//! `ctrlmesh mesh-ca DIR`: makes a CA for stand-alone use and for `ctrlmesh inject`.

use std::path::PathBuf;

use clap::Args;

use ctrlmesh_net::{
    Clock, ClusterDomain,
    ca::{CaError, Cidr, Constraints, MeshCa},
};

/// The flags of `ctrlmesh mesh-ca`.
#[derive(Args, Clone, Debug)]
pub struct MeshCaArgs {
    /// The directory for ca.crt and ca.key; existing files are never overwritten
    #[arg(value_name = "DIR")]
    dir: PathBuf,

    /// The DNS domain of the cluster
    #[arg(long, env = "CTRLMESH_CLUSTER_DOMAIN", value_name = "DOMAIN",
          default_value = ClusterDomain::DEFAULT)]
    cluster_domain: ClusterDomain,

    /// A further DNS name of the API server: the CA may sign for it and its subdomains
    #[arg(long, env = "CTRLMESH_DNS", value_name = "NAME", value_delimiter = ',')]
    dns: Vec<String>,

    /// A further address or range of addresses of the API server that the CA may sign for
    #[arg(long, env = "CTRLMESH_IP", value_name = "CIDR", value_delimiter = ',')]
    ip: Vec<Cidr>,
}

/// Makes the CA. Fails with [`CaError`].
pub fn run(args: MeshCaArgs) -> Result<(), CaError> {
    let constraints = Constraints::kubernetes_and(&args.cluster_domain, args.dns, args.ip);
    MeshCa::create(&args.dir, &constraints, &Clock::system())
}
