//! `bowline plugin add`: an init container in the server's Deployment that copies a plugin.

use anyhow::bail;
use k8s_openapi::api::core::v1::Container;
use serde_json::{Value, json};

use crate::args::InstallationArgs;
use crate::confirm::confirm;
use crate::exit::Exit;
use crate::installation::Installation;
use crate::server_deployment::ServerDeployment;
use crate::{output, plugin_image};

/// Volume with the plugins, and its path in the server.
const VOLUME: &str = "plugins";
const FOLDER: &str = "/plugins";
/// Folder to which images of plugins copy them.
const TARGET: &str = "/target";

/// Add a plugin to the server
///
/// Adds an init container with the image to the server's Deployment and restarts the server;
/// running backups and restores are resumed. An existing image is replaced by another version of
/// it.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Image with the plugin
    image: String,

    /// Image pull policy
    #[arg(long, value_name = "POLICY", default_value = "IfNotPresent")]
    image_pull_policy: PullPolicy,

    /// Skip the confirmation prompt
    #[arg(long)]
    confirm: bool,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
#[value(rename_all = "PascalCase")]
enum PullPolicy {
    Always,
    IfNotPresent,
    Never,
}

impl PullPolicy {
    fn as_str(self) -> &'static str {
        match self {
            Self::Always => "Always",
            Self::IfNotPresent => "IfNotPresent",
            Self::Never => "Never",
        }
    }
}

pub(crate) async fn run(args: &Args, installation: &InstallationArgs) -> anyhow::Result<Exit> {
    let installation = Installation::connect(installation).await?;
    let deployment = ServerDeployment::find(&installation).await?;
    let change = plugin_patch(&deployment, &args.image, args.image_pull_policy)?;
    let name = &deployment.name;
    let question = format!("Deployment {name} gets the plugin, and the server is restarted.");
    if !confirm(args.confirm, &question)? {
        output::print_message("nothing was changed");
        return Ok(Exit::Success);
    }
    deployment.patch_pod(&installation, change).await?;
    let hint = installation.hint("plugin get");
    output::print_message(format_args!(
        "plugin added to Deployment `{name}`; {hint} lists it once the server has started"
    ));
    Ok(Exit::Success)
}

/// Patch for the server's pod.
fn plugin_patch(
    deployment: &ServerDeployment,
    image: &str,
    policy: PullPolicy,
) -> anyhow::Result<Value> {
    let ServerDeployment { pod, server, .. } = deployment;
    let init_containers: &[Container] = pod.init_containers.as_deref().unwrap_or_default();
    if let Some(same) = init_containers.iter().find(|one| one.image.as_deref() == Some(image)) {
        bail!("the image is already present, as init container `{}`", same.name);
    }
    let same = |one: &&Container| {
        one.image.as_deref().is_some_and(|other| plugin_image::is_same_plugin(other, image))
    };
    // Two versions would copy the same files, and the last one would win.
    if let Some(other) = init_containers.iter().find(same) {
        let changed = json!({
            "name": other.name, "image": image, "imagePullPolicy": policy.as_str(),
        });
        return Ok(json!({"initContainers": [changed]}));
    }
    let is_taken = |name: &str| init_containers.iter().any(|one| one.name == name);
    let name = plugin_image::container_name(image, is_taken)?;
    let mut plugin = json!({
        "name": name,
        "image": image,
        "imagePullPolicy": policy.as_str(),
        "volumeMounts": [{"name": VOLUME, "mountPath": TARGET}],
    });
    // A namespace may require the restrictions that the server has.
    if let Some(context) = &server.security_context {
        plugin["securityContext"] = json!(context);
    }
    // After the existing ones, whatever order the API server would choose.
    let order =
        init_containers.iter().map(|one| json!({"name": one.name})).chain([json!({"name": name})]);
    let mut change = json!({
        "initContainers": [plugin],
        "$setElementOrder/initContainers": order.collect::<Vec<_>>(),
    });
    if !pod.volumes.iter().flatten().any(|volume| volume.name == VOLUME) {
        change["volumes"] = json!([{"name": VOLUME, "emptyDir": {}}]);
    }
    if !server.volume_mounts.iter().flatten().any(|mount| mount.name == VOLUME) {
        let mount = json!({"name": VOLUME, "mountPath": FOLDER});
        change["containers"] = json!([{"name": server.name, "volumeMounts": [mount]}]);
    }
    Ok(change)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deployment(pod: Value) -> ServerDeployment {
        let pod: k8s_openapi::api::core::v1::PodSpec = serde_json::from_value(pod).unwrap();
        ServerDeployment { name: "d".to_owned(), server: pod.containers[0].clone(), pod }
    }

    #[test]
    fn plugin_gets_the_security_context_of_the_server() {
        let bare = deployment(json!({"containers": [{"name": "velero"}]}));
        let image = "docker.io/velero/velero-plugin-for-aws:v1.14.0";
        let change = plugin_patch(&bare, image, PullPolicy::Always).unwrap();
        let mount = json!({"name": "plugins", "mountPath": "/plugins"});
        assert_eq!(
            change,
            json!({
                "initContainers": [{
                    "name": "velero-velero-plugin-for-aws", "image": image,
                    "imagePullPolicy": "Always",
                    "volumeMounts": [{"name": "plugins", "mountPath": "/target"}],
                }],
                "$setElementOrder/initContainers": [{"name": "velero-velero-plugin-for-aws"}],
                "volumes": [{"name": "plugins", "emptyDir": {}}],
                "containers": [{"name": "velero", "volumeMounts": [mount]}],
            })
        );
        let context = json!({"allowPrivilegeEscalation": false});
        let full = deployment(json!({
            "containers": [{
                "name": "bowline", "volumeMounts": [mount], "securityContext": context,
            }],
            "volumes": [{"name": "plugins", "emptyDir": {}}],
            "initContainers": [{"name": "velero-velero-plugin-for-aws", "image": "other"}],
        }));
        let change = plugin_patch(&full, image, PullPolicy::IfNotPresent).unwrap();
        assert_eq!(change.as_object().unwrap().len(), 2, "{change}");
        assert_eq!(change["initContainers"][0]["name"], "velero-velero-plugin-for-aws-2");
        assert_eq!(change["initContainers"][0]["securityContext"], context);
        let error = plugin_patch(&full, "other", PullPolicy::Never).unwrap_err();
        assert!(error.to_string().contains("already present"), "{error}");
    }

    #[test]
    fn new_version_replaces_the_installed_one() {
        let existing = deployment(json!({
            "containers": [{"name": "bowline"}],
            "initContainers": [{"name": "plugin", "image": "x.io/aws:v1"}],
        }));
        let change = plugin_patch(&existing, "x.io/aws:v2", PullPolicy::Always).unwrap();
        let changed =
            json!({"name": "plugin", "image": "x.io/aws:v2", "imagePullPolicy": "Always"});
        assert_eq!(change, json!({"initContainers": [changed]}));
    }
}
