//! What an installation that was here before has, and what of it is kept.

use bowline_api::access::Profile;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{PodSpec, Secret};
use k8s_openapi::api::rbac::v1::ClusterRole;
use kube::{Api, ResourceExt as _};

use super::objects::{NAME, PROFILE_LABEL, Wish, cluster_name};
use super::{Args, plugins, server_pod};
use crate::installation::Installation;
use crate::output;

/// Goes on with what an installation that was here before has, Velero's or ours: its image and profile unless others
/// are named, the Secret is mounted, and plugins keep the containers that they have.
pub(super) async fn use_what_is_there(
    installation: &Installation,
    args: &Args,
    wish: &mut Wish,
) -> anyhow::Result<()> {
    let api: Api<Deployment> = installation.api();
    let found = installation.ask("read the server's Deployment", api.get_opt(NAME)).await?;
    let pod = found.and_then(|deployment| deployment.spec).and_then(|spec| spec.template.spec);
    let roles: Api<ClusterRole> = installation.cluster_api();
    let role = cluster_name(&wish.namespace);
    let role = installation.ask("read the server's ClusterRole", roles.get_opt(&role)).await?;
    let image = pod.as_ref().and_then(image_of);
    let profile = role.as_ref().and_then(profile_of);
    keep(args, wish, image, profile).into_iter().for_each(output::say);
    let there = pod.and_then(|pod| pod.init_containers).unwrap_or_default();
    let images: Vec<String> = wish.pod.plugins.iter().map(|one| one.image.clone()).collect();
    wish.pod.plugins = plugins::containers(&images, &there)?;
    if wish.pod.has_credentials {
        return Ok(());
    }
    let (name, key) = (server_pod::SECRET, server_pod::SECRET_KEY);
    let api: Api<Secret> = installation.api();
    let doing = format!("read Secret {name}");
    let found = installation.ask(&doing, api.get_opt(name)).await?;
    let data = found.and_then(|secret| secret.data).unwrap_or_default();
    if data.contains_key(key) {
        wish.pod.has_credentials = true;
        output::say(format_args!("Secret {name}: kept, the server uses its key `{key}`"));
    }
    Ok(())
}

fn image_of(pod: &PodSpec) -> Option<String> {
    pod.containers.iter().find(|container| container.name == NAME)?.image.clone()
}

fn profile_of(role: &ClusterRole) -> Option<Profile> {
    role.labels().get(PROFILE_LABEL)?.parse().ok()
}

/// Keeps the image and the profile of a server that is there, unless others are named. Returns what there is to say
/// about it.
fn keep(
    args: &Args,
    wish: &mut Wish,
    image: Option<String>,
    profile: Option<Profile>,
) -> Vec<String> {
    let mut words = Vec::new();
    match (&args.image, image) {
        (Some(named), Some(there)) if *named != there => {
            words.push(format!("image: {there} changes to {named}"));
        }
        (Some(_), _) => {}
        (None, Some(there)) => {
            words.push(format!("image: {there}, unchanged"));
            wish.pod.image = there;
        }
        (None, None) => words.push(format!(
            "image: {} is not published: build and push it, then set its location with --image",
            wish.pod.image
        )),
    }
    match (args.profile, profile) {
        (Some(named), Some(there)) if named != there => {
            words.push(format!("profile: {there} changes to {named}"));
        }
        (None, Some(there)) => wish.profile = there,
        _ => {}
    }
    words
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    /// The image and profile that come of a command line and what is there, and what is said.
    fn kept(
        line: &[&str],
        image: Option<&str>,
        profile: Option<Profile>,
    ) -> (String, Profile, Vec<String>) {
        let least = ["install", "-n", "velero", "--no-secret", "--no-default-backup-location"];
        let args = Line::try_parse_from(least.iter().chain(line)).unwrap().args;
        let mut wish = super::super::wish(&args).unwrap();
        let said = keep(&args, &mut wish, image.map(str::to_owned), profile);
        (wish.pod.image, wish.profile, said)
    }

    #[test]
    fn what_is_there_is_kept_unless_something_else_is_named() {
        let (image, profile, said) = kept(&[], Some("own/bowline:v1"), Some(Profile::Full));
        assert_eq!((image.as_str(), profile), ("own/bowline:v1", Profile::Full));
        assert_eq!(said, ["image: own/bowline:v1, unchanged"]);
        let line = ["--image=own/bowline:v2", "--profile=backup-only"];
        let (image, profile, said) = kept(&line, Some("own/bowline:v1"), Some(Profile::Full));
        assert_eq!((image.as_str(), profile), ("own/bowline:v2", Profile::BackupOnly));
        assert_eq!(
            said,
            [
                "image: own/bowline:v1 changes to own/bowline:v2",
                "profile: full changes to backup-only",
            ]
        );
    }

    #[test]
    fn an_image_that_nobody_has_named_is_told() {
        let (image, profile, said) = kept(&[], None, None);
        assert_eq!((image.as_str(), profile), (super::super::IMAGE, Profile::BackupOnly));
        assert!(said[0].contains("is not published") && said.len() == 1, "{said:?}");
        assert_eq!(kept(&["--image=x"], None, None).2, [""; 0]);
    }
}
