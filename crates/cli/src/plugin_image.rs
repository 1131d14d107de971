//! Images of plugins: names of their init containers, and comparison of plugins.

use anyhow::bail;

/// Longest name of a container.
const MAX_NAME_LENGTH: usize = 63;
/// Registry that is meant where none is named.
const DEFAULT_REGISTRY: &str = "docker.io/";

/// True if two images are versions of the same plugin.
pub(crate) fn is_same_plugin(one: &str, other: &str) -> bool {
    repository(one) == repository(other)
}

/// Image without its version, and without the default registry.
fn repository(image: &str) -> &str {
    let image = image.split('@').next().unwrap_or_default();
    // A colon before a slash separates the port of the registry.
    let image = match image.rsplit_once(':') {
        Some((before, after)) if !after.contains('/') => before,
        _ => image,
    };
    image.strip_prefix(DEFAULT_REGISTRY).unwrap_or(image)
}

/// Name for the container: that of the image, without its registry and version.
pub(crate) fn container_name(
    image: &str,
    is_taken: impl Fn(&str) -> bool,
) -> anyhow::Result<String> {
    let is_registry = |part: &str| part.contains(['.', ':']) || part == "localhost";
    let repository = repository(image);
    let path = match repository.split_once('/') {
        Some((first, rest)) if is_registry(first) => rest,
        _ => repository,
    };
    let letter = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let name: String = path.chars().map(letter).take(MAX_NAME_LENGTH - 3).collect();
    let name = name.trim_matches('-');
    if name.is_empty() {
        bail!("`{image}` is not a valid image name");
    }
    let numbered = (2..100).map(|number| format!("{name}-{number}"));
    let free = [name.to_owned()].into_iter().chain(numbered).find(|name| !is_taken(name));
    free.map_or_else(|| bail!("too many init containers are named `{name}`"), Ok)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn container_is_named_after_its_image() {
        for (image, expected) in [
            ("aws", "aws"),
            ("velero/plugin_for.aws:v1", "velero-plugin-for-aws"),
            ("localhost:5000/a/b@sha256:00", "a-b"),
            ("registry.io:443/Plugin:1", "plugin"),
            ("docker.io/velero/aws:v1", "velero-aws"),
        ] {
            assert_eq!(container_name(image, |_| false).unwrap(), expected);
        }
        assert_eq!(container_name("a:1", |name| name == "a").unwrap(), "a-2");
        assert!(container_name("a", |_| true).is_err());
        assert!(container_name("::", |_| false).is_err());
        assert!(container_name(&"x".repeat(300), |_| false).unwrap().len() <= MAX_NAME_LENGTH);
    }

    #[test]
    fn versions_of_an_image_are_the_same_plugin() {
        for (one, other, expected) in [
            ("x.io/aws:v1", "x.io/aws:v2", true),
            ("x.io/aws:v1", "x.io/aws@sha256:00", true),
            ("velero/aws", "docker.io/velero/aws:v1", true),
            ("x.io:443/aws:v1", "x.io:443/aws", true),
            ("x.io/aws:v1", "y.io/aws:v1", false),
            ("x.io/aws:v1", "x.io/gcp:v1", false),
        ] {
            assert_eq!(is_same_plugin(one, other), expected, "{one} {other}");
        }
    }
}
