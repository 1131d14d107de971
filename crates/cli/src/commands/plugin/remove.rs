//! `bowline plugin remove`

use anyhow::bail;
use k8s_openapi::api::core::v1::Container;
use serde_json::json;

use crate::args::InstallationArgs;
use crate::exit::Exit;
use crate::installation::Installation;
use crate::output;
use crate::server_deployment::ServerDeployment;

/// Remove a plugin from the server
///
/// Removes the init container with the image from the server's Deployment and restarts the server.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Image with the plugin, or name of its init container
    plugin: String,
}

pub(crate) async fn run(args: &Args, installation: &InstallationArgs) -> anyhow::Result<Exit> {
    let installation = Installation::connect(installation).await?;
    let deployment = ServerDeployment::find(&installation).await?;
    let init_containers: &[Container] =
        deployment.pod.init_containers.as_deref().unwrap_or_default();
    let is_meant = |one: &&Container| {
        one.name == args.plugin || one.image.as_deref() == Some(args.plugin.as_str())
    };
    let Some(container) = init_containers.iter().find(is_meant) else {
        let images: Vec<&str> =
            init_containers.iter().filter_map(|one| one.image.as_deref()).collect();
        let images = if images.is_empty() { "none".to_owned() } else { images.join(", ") };
        bail!(
            "Deployment `{}` has no plugin `{}`; installed plugins: {images}",
            deployment.name,
            args.plugin
        );
    };
    let change = json!({"initContainers": [{"name": container.name, "$patch": "delete"}]});
    deployment.patch_pod(&installation, change).await?;
    let name = &deployment.name;
    output::print_message(format_args!("`{}` removed from Deployment `{name}`", args.plugin));
    Ok(Exit::Success)
}
