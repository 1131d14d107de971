//! Init containers of plugins.

use k8s_openapi::api::core::v1::Container;

use crate::plugin_image::{container_name, is_same_plugin};

/// Plugin of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Plugin {
    pub(super) image: String,
    /// Init container that copies the plugin.
    pub(super) container: String,
}

/// Plugins of these images. An existing one, as after `plugin add`, keeps its container and gets the given version.
pub(super) fn plugin_containers(
    images: &[String],
    existing: &[Container],
) -> anyhow::Result<Vec<Plugin>> {
    let mut plugins: Vec<Plugin> = Vec::new();
    for image in images {
        let is_new = |name: &str| plugins.iter().all(|plugin| plugin.container != name);
        if plugins.iter().any(|plugin| plugin.image == *image) {
            continue;
        }
        let is_same = |one: &&Container| {
            is_new(&one.name)
                && one.image.as_deref().is_some_and(|other| is_same_plugin(other, image))
        };
        let is_taken = |name: &str| !is_new(name) || existing.iter().any(|one| one.name == name);
        let container = match existing.iter().find(is_same) {
            Some(same) => same.name.clone(),
            None => container_name(image, is_taken)?,
        };
        plugins.push(Plugin { image: image.clone(), container });
    }
    Ok(plugins)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn existing_plugin_keeps_its_container() {
        let existing =
            [("a-aws", "x.io/a/aws:1"), ("gcp", "strange")].map(|(name, image)| Container {
                name: name.to_owned(),
                image: Some(image.to_owned()),
                ..Container::default()
            });
        let images =
            ["x.io/gcp:1", "x.io/a/aws:2", "y.io/a/aws:1", "x.io/gcp:1"].map(str::to_owned);
        let plugins = plugin_containers(&images, &existing).unwrap();
        let plugins: Vec<_> =
            plugins.iter().map(|one| (one.container.as_str(), one.image.as_str())).collect();
        assert_eq!(
            plugins,
            [("gcp-2", "x.io/gcp:1"), ("a-aws", "x.io/a/aws:2"), ("a-aws-2", "y.io/a/aws:1")]
        );
    }
}
