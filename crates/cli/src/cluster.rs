//! Client for the cluster that the user selects.

use anyhow::{Context as _, anyhow, bail};
use kube::config::{Config, KubeConfigOptions, Kubeconfig, KubeconfigError};

use crate::active_runs;
use crate::args::ClusterArgs;

/// Follows `--kubeconfig` and `--kubecontext`, then `$KUBECONFIG` and `~/.kube/config`, and without such a file the
/// configuration of the pod that this process runs in.
pub(crate) async fn client(args: &ClusterArgs) -> anyhow::Result<kube::Client> {
    let config = config(args).await?;
    kube::Client::try_from(config).context("cannot create a client from the kubeconfig")
}

pub(crate) async fn config(args: &ClusterArgs) -> anyhow::Result<Config> {
    let options =
        KubeConfigOptions { context: args.kubecontext.clone(), ..KubeConfigOptions::default() };
    let read = match &args.kubeconfig {
        Some(path) => Kubeconfig::read_from(path),
        None => Kubeconfig::read(),
    };
    let file = match read {
        Ok(file) => file,
        Err(_) if args.kubeconfig.is_none() && is_in_a_pod() => {
            return Config::incluster().context("cannot use the in-cluster credentials");
        }
        Err(error) => bail!("{}; {KUBECONFIG_HINT}", kubeconfig_error(&error)),
    };
    if let Some(context) = &args.kubecontext
        && file.contexts.iter().all(|one| one.name != *context)
    {
        return Err(unknown_context_error(context, &file, args));
    }
    Config::from_custom_kubeconfig(file, &options)
        .await
        .with_context(|| format!("the kubeconfig names no cluster; {KUBECONFIG_HINT}"))
}

/// Error for a context that does not exist.
fn unknown_context_error(context: &str, file: &Kubeconfig, args: &ClusterArgs) -> anyhow::Error {
    let contexts: Vec<String> = file.contexts.iter().map(|one| format!("`{}`", one.name)).collect();
    let contexts =
        if contexts.is_empty() { "none".to_owned() } else { active_runs::first_names(&contexts) };
    let path = match (&args.kubeconfig, std::env::var("KUBECONFIG")) {
        (Some(path), _) => path.display().to_string(),
        (None, Ok(path)) if !path.is_empty() => path,
        (None, _) => "~/.kube/config".to_owned(),
    };
    anyhow!("kubeconfig {path} has no context `{context}`; available contexts: {contexts}")
}

const KUBECONFIG_HINT: &str = "set KUBECONFIG, or name a file with --kubeconfig";

fn is_in_a_pod() -> bool {
    std::env::var_os("KUBERNETES_SERVICE_HOST").is_some()
}

/// Reason why a kubeconfig cannot be read. A parser would quote the lines around the mistake, and in this file they may
/// contain a token.
fn kubeconfig_error(error: &KubeconfigError) -> String {
    match error {
        KubeconfigError::ReadConfig(error, path) => {
            format!("cannot read the kubeconfig {}: {error}", path.display())
        }
        KubeconfigError::FindPath => "no kubeconfig found".to_owned(),
        KubeconfigError::Parse(_) => "the kubeconfig is not valid kubeconfig YAML".to_owned(),
        other => format!("cannot read the kubeconfig: {other}"),
    }
}
