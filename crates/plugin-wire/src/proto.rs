//! Code generated from `proto/`, one module per package.
//!
//! Packages refer to each other as siblings, so they must be siblings here too.

/// One package, as generated.
macro_rules! package {
    ($name:ident, $file:literal) => {
        #[allow(
            dead_code,
            unreachable_pub,
            clippy::all,
            clippy::pedantic,
            reason = "made by a generator"
        )]
        pub(crate) mod $name {
            include!(concat!("generated/", $file));
        }
    };
}

package!(generated, "generated.rs");
package!(v1, "v1.rs");
package!(v2, "v2.rs");
package!(plugin, "plugin.rs");
package!(health, "grpc.health.v1.rs");
package!(rpc, "google.rpc.rs");

#[cfg(test)]
mod tests;
