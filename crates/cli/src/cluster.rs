//! A client for the cluster that the user means.

use anyhow::Context as _;
use kube::config::{Config, KubeConfigOptions, Kubeconfig};

use crate::args::ClusterArgs;

/// Follows `--kubeconfig` and `--kubecontext`, and else what kubectl would use.
pub(crate) async fn client(args: &ClusterArgs) -> anyhow::Result<kube::Client> {
    let options =
        KubeConfigOptions { context: args.kubecontext.clone(), ..KubeConfigOptions::default() };
    let config = match &args.kubeconfig {
        Some(path) => {
            let file = Kubeconfig::read_from(path)
                .with_context(|| format!("cannot read the kubeconfig {}", path.display()))?;
            Config::from_custom_kubeconfig(file, &options).await
        }
        None if args.kubecontext.is_some() => Config::from_kubeconfig(&options).await,
        None => {
            return Config::infer()
                .await
                .context("no cluster to talk to; set KUBECONFIG, or name a file with --kubeconfig")
                .and_then(|config| kube::Client::try_from(config).context("cannot make a client"));
        }
    };
    let config = config.context("cannot use the kubeconfig")?;
    kube::Client::try_from(config).context("cannot make a client from the kubeconfig")
}
