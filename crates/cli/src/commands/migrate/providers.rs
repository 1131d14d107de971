//! Support for the providers of locations: built in, or by a plugin in Velero's Deployment, as far as the names of
//! images indicate.

/// Support for a provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProviderSupport<'a> {
    /// Built into the server.
    BuiltIn,
    /// By a plugin of this image.
    Plugin(&'a str),
    /// Possibly by one of the plugins: no image is named after the provider.
    Unknown,
    /// Not supported.
    Unsupported,
}

/// Providers whose plugins are Velero's own: their images are named after them.
const VELERO_PROVIDERS: [&str; 3] = ["aws", "azure", "gcp"];

/// Words in names of providers that do not identify a vendor.
const COMMON_WORDS: [&str; 7] = ["velero", "plugin", "bowline", "com", "org", "net", "io"];

/// Support for a provider by a server with plugins of these images.
pub(super) fn provider_support<'a>(
    provider: &str,
    built_in: &[&str],
    images: &'a [String],
) -> ProviderSupport<'a> {
    let name = short_name(provider);
    if built_in.contains(&name) {
        return ProviderSupport::BuiltIn;
    }
    let words: Vec<&str> = name
        .split(|letter: char| !letter.is_ascii_alphanumeric())
        .filter(|word| word.len() > 1 && !COMMON_WORDS.contains(word))
        .collect();
    let is_named_after = |image: &&String| words.iter().any(|word| has_word(image, word));
    match images.iter().find(is_named_after) {
        Some(image) => ProviderSupport::Plugin(image),
        None if images.is_empty() || VELERO_PROVIDERS.contains(&name) => {
            ProviderSupport::Unsupported
        }
        None => ProviderSupport::Unknown,
    }
}

/// `aws` for `velero.io/aws`, which is the full form.
pub(super) fn short_name(provider: &str) -> &str {
    provider.strip_prefix("velero.io/").unwrap_or(provider)
}

/// True if the name of an image contains a word. Registry and tag do not belong to the name.
fn has_word(image: &str, word: &str) -> bool {
    let path = image.split('@').next().unwrap_or_default();
    let path = match path.split_once('/') {
        Some((registry, path)) if registry.contains(['.', ':']) || registry == "localhost" => path,
        _ => path,
    };
    let path = match path.rsplit_once(':') {
        Some((path, tag)) if !tag.contains('/') => path,
        _ => path,
    };
    path.split(|letter: char| !letter.is_ascii_alphanumeric()).any(|part| part == word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn provider_is_built_in_or_served_by_an_image_named_after_it() {
        let images = ["gcr.io/x/velero-plugin-for-aws:azure", "example/fixture-plugins@sha256:00"]
            .map(str::to_owned);
        let built_in = ["aws", "filesystem"];
        for (provider, expected) in [
            ("aws", ProviderSupport::BuiltIn),
            ("velero.io/aws", ProviderSupport::BuiltIn),
            ("filesystem", ProviderSupport::BuiltIn),
            ("azure", ProviderSupport::Unsupported),
            ("velero.io/gcp", ProviderSupport::Unsupported),
            ("fixture.bowline.io/vs-v1", ProviderSupport::Plugin(&images[1])),
            ("acme.com/store", ProviderSupport::Unknown),
        ] {
            assert_eq!(provider_support(provider, &built_in, &images), expected, "{provider}");
        }
        assert_eq!(provider_support("aws", &[], &images), ProviderSupport::Plugin(&images[0]));
        assert_eq!(
            provider_support("acme.com/store", &built_in, &[]),
            ProviderSupport::Unsupported
        );
        let mirrored = ["registry.example:5000/azure".to_owned()];
        assert_eq!(
            provider_support("velero.io/azure", &[], &mirrored),
            ProviderSupport::Plugin(&mirrored[0])
        );
    }
}
