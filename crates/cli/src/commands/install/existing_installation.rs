//! Settings of an existing installation that are kept.

use bowline_api::access::Profile;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{PodSpec, Secret};
use k8s_openapi::api::rbac::v1::ClusterRole;
use kube::{Api, ResourceExt as _};

use super::objects::{InstallPlan, NAME, PROFILE_LABEL, cluster_name};
use super::{Args, plugins, server_pod};
use crate::installation::Installation;
use crate::output;

/// Continues an existing installation, Velero's or Bowline's: keeps its image and profile unless others are given,
/// mounts the Secret, and keeps the init containers of plugins.
pub(super) async fn keep_existing_installation(
    installation: &Installation,
    args: &Args,
    plan: &mut InstallPlan,
) -> anyhow::Result<()> {
    let api: Api<Deployment> = installation.api();
    let found = installation.call_api("read the server's Deployment", api.get_opt(NAME)).await?;
    let pod = found.and_then(|deployment| deployment.spec).and_then(|spec| spec.template.spec);
    let roles: Api<ClusterRole> = installation.cluster_api();
    let role = cluster_name(&plan.namespace);
    let role = installation.call_api("read the server's ClusterRole", roles.get_opt(&role)).await?;
    let image = pod.as_ref().and_then(image_of);
    let profile = role.as_ref().and_then(profile_of);
    keep_existing(args, plan, image, profile).into_iter().for_each(output::print_message);
    let init_containers = pod.and_then(|pod| pod.init_containers).unwrap_or_default();
    let images: Vec<String> = plan.pod.plugins.iter().map(|one| one.image.clone()).collect();
    plan.pod.plugins = plugins::plugin_containers(&images, &init_containers)?;
    if plan.pod.has_credentials {
        return Ok(());
    }
    let (name, key) = (server_pod::SECRET, server_pod::SECRET_KEY);
    let api: Api<Secret> = installation.api();
    let doing = format!("read Secret {name}");
    let found = installation.call_api(&doing, api.get_opt(name)).await?;
    let data = found.and_then(|secret| secret.data).unwrap_or_default();
    if data.contains_key(key) {
        plan.pod.has_credentials = true;
        output::print_message(format_args!("Secret {name}: kept, the server uses its key `{key}`"));
    }
    Ok(())
}

fn image_of(pod: &PodSpec) -> Option<String> {
    pod.containers.iter().find(|container| container.name == NAME)?.image.clone()
}

fn profile_of(role: &ClusterRole) -> Option<Profile> {
    role.labels().get(PROFILE_LABEL)?.parse().ok()
}

/// Keeps the image and the profile of an existing server, unless others are given. Returns messages about it.
fn keep_existing(
    args: &Args,
    wish: &mut InstallPlan,
    image: Option<String>,
    profile: Option<Profile>,
) -> Vec<String> {
    let mut messages = Vec::new();
    match (&args.image, image) {
        (Some(requested), Some(existing)) if *requested != existing => {
            messages.push(format!("image: {existing} changes to {requested}"));
        }
        (Some(_), _) => {}
        (None, Some(existing)) => {
            messages.push(format!("image: {existing}, unchanged"));
            wish.pod.image = existing;
        }
        (None, None) => messages.push(format!(
            "image: {} is not published: build and push it, then set its location with --image",
            wish.pod.image
        )),
    }
    match (args.profile, profile) {
        (Some(requested), Some(existing)) if requested != existing => {
            messages.push(format!("profile: {existing} changes to {requested}"));
        }
        (None, Some(existing)) => wish.profile = existing,
        _ => {}
    }
    messages
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(Debug, clap::Parser)]
    struct TestCommand {
        #[command(flatten)]
        args: Args,
    }

    /// Image and profile from the command line and the existing server, and messages about them.
    fn kept_settings(
        line: &[&str],
        image: Option<&str>,
        profile: Option<Profile>,
    ) -> (String, Profile, Vec<String>) {
        let minimal = ["install", "-n", "velero", "--no-secret", "--no-default-backup-location"];
        let args = TestCommand::try_parse_from(minimal.iter().chain(line)).unwrap().args;
        let mut plan = super::super::install_plan(&args).unwrap();
        let messages = keep_existing(&args, &mut plan, image.map(str::to_owned), profile);
        (plan.pod.image, plan.profile, messages)
    }

    #[test]
    fn existing_image_and_profile_are_kept_unless_overridden() {
        let (image, profile, messages) =
            kept_settings(&[], Some("own/bowline:v1"), Some(Profile::Full));
        assert_eq!((image.as_str(), profile), ("own/bowline:v1", Profile::Full));
        assert_eq!(messages, ["image: own/bowline:v1, unchanged"]);
        let line = ["--image=own/bowline:v2", "--profile=backup-only"];
        let (image, profile, messages) =
            kept_settings(&line, Some("own/bowline:v1"), Some(Profile::Full));
        assert_eq!((image.as_str(), profile), ("own/bowline:v2", Profile::BackupOnly));
        assert_eq!(
            messages,
            [
                "image: own/bowline:v1 changes to own/bowline:v2",
                "profile: full changes to backup-only",
            ]
        );
    }

    #[test]
    fn default_image_is_reported() {
        let (image, profile, messages) = kept_settings(&[], None, None);
        assert_eq!((image.as_str(), profile), (super::super::DEFAULT_IMAGE, Profile::BackupOnly));
        assert!(messages[0].contains("is not published") && messages.len() == 1, "{messages:?}");
        assert_eq!(kept_settings(&["--image=x"], None, None).2, [""; 0]);
    }
}
