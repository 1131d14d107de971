//! `bowline plugin add`: an init container in the server's Deployment that copies a plugin.

use anyhow::bail;
use k8s_openapi::api::core::v1::Container;
use serde_json::{Value, json};

use crate::args::InstallationArgs;
use crate::confirm::confirm;
use crate::exit::Exit;
use crate::installation::Installation;
use crate::output;
use crate::server_deployment::ServerDeployment;

/// The volume in which plugins are handed to the server, and where that looks for them.
const VOLUME: &str = "plugins";
const FOLDER: &str = "/plugins";
/// Where images of plugins copy them to.
const TARGET: &str = "/target";
/// The longest name of a container.
const LONGEST_NAME: usize = 63;

/// Add a plugin to the server
///
/// An init container with the image is added to the server's Deployment, which starts the server anew;
/// runs that are under way go on where they were.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The image with the plugin
    image: String,

    /// When the image is pulled
    #[arg(long, value_name = "POLICY", default_value = "IfNotPresent")]
    image_pull_policy: PullPolicy,

    /// Do not ask whether this is meant
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
    let change = addition(&deployment, &args.image, args.image_pull_policy)?;
    let name = &deployment.name;
    let question = format!("The Deployment {name} gets the plugin, which starts the server anew.");
    if !confirm(args.confirm, &question)? {
        output::say("nothing is changed");
        return Ok(Exit::Success);
    }
    deployment.change(&installation, change).await?;
    let hint = installation.hint("plugin get");
    output::say(format_args!(
        "the plugin is added to Deployment `{name}`; {hint} shows when it is there"
    ));
    Ok(Exit::Success)
}

/// What is changed in the server's pod.
fn addition(
    deployment: &ServerDeployment,
    image: &str,
    policy: PullPolicy,
) -> anyhow::Result<Value> {
    let ServerDeployment { pod, server, .. } = deployment;
    let there: &[Container] = pod.init_containers.as_deref().unwrap_or_default();
    if let Some(same) = there.iter().find(|one| one.image.as_deref() == Some(image)) {
        bail!("the image is there already, as init container `{}`", same.name);
    }
    let name = free_name(image, there)?;
    let mut plugin = json!({
        "name": name,
        "image": image,
        "imagePullPolicy": policy.as_str(),
        "volumeMounts": [{"name": VOLUME, "mountPath": TARGET}],
    });
    // A namespace may ask for what the server is confined to.
    if let Some(context) = &server.security_context {
        plugin["securityContext"] = json!(context);
    }
    // After those that are there, whatever order the API server would choose.
    let order = there.iter().map(|one| json!({"name": one.name})).chain([json!({"name": name})]);
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

/// A name for the container: that of the image, without its registry and version.
fn free_name(image: &str, there: &[Container]) -> anyhow::Result<String> {
    let is_registry = |part: &str| part.contains(['.', ':']) || part == "localhost";
    let path = match image.split_once('/') {
        Some((first, rest)) if is_registry(first) => rest,
        _ => image,
    };
    let path = path.split('@').next().unwrap_or_default();
    let path = path.rsplit_once(':').map_or(path, |(path, _)| path);
    let letter = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let name: String = path.chars().map(letter).take(LONGEST_NAME - 3).collect();
    let name = name.trim_matches('-');
    if name.is_empty() {
        bail!("`{image}` is not the name of an image");
    }
    let numbered = (2..100).map(|number| format!("{name}-{number}"));
    let free = [name.to_owned()]
        .into_iter()
        .chain(numbered)
        .find(|name| there.iter().all(|container| container.name != *name));
    free.map_or_else(|| bail!("there are too many init containers called `{name}`"), Ok)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deployment(pod: Value) -> ServerDeployment {
        let pod: k8s_openapi::api::core::v1::PodSpec = serde_json::from_value(pod).unwrap();
        ServerDeployment { name: "d".to_owned(), server: pod.containers[0].clone(), pod }
    }

    #[test]
    fn a_plugin_is_confined_as_the_server_is() {
        let bare = deployment(json!({"containers": [{"name": "velero"}]}));
        let image = "docker.io/velero/velero-plugin-for-aws:v1.14.0";
        let change = addition(&bare, image, PullPolicy::Always).unwrap();
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
        let change = addition(&full, image, PullPolicy::IfNotPresent).unwrap();
        assert_eq!(change.as_object().unwrap().len(), 2, "{change}");
        assert_eq!(change["initContainers"][0]["name"], "velero-velero-plugin-for-aws-2");
        assert_eq!(change["initContainers"][0]["securityContext"], context);
        let error = addition(&full, "other", PullPolicy::Never).unwrap_err();
        assert!(error.to_string().contains("there already"), "{error}");
    }

    #[test]
    fn a_container_is_named_after_its_image() {
        for (image, expected) in [
            ("aws", "aws"),
            ("velero/plugin_for.aws:v1", "velero-plugin-for-aws"),
            ("localhost:5000/a/b@sha256:00", "a-b"),
            ("registry.io:443/Plugin:1", "plugin"),
        ] {
            assert_eq!(free_name(image, &[]).unwrap(), expected);
        }
        assert!(free_name("::", &[]).is_err());
        assert!(free_name(&"x".repeat(300), &[]).unwrap().len() <= LONGEST_NAME);
    }
}
