//! Backups of one cluster as it grows: the cost against the number of objects.

use crate::backup::{self, Backups};
use crate::bench_env::BenchEnv;
use crate::contender::Contender;
use crate::fill::{self, Load};
use crate::print_line;

/// Backups of a cluster at one size.
#[derive(Clone, Debug)]
pub(crate) struct SizedBackups {
    pub(crate) load: Load,
    pub(crate) backups: Backups,
}

/// Backups of a cluster at several sizes, smallest first.
#[derive(Clone, Debug)]
pub(crate) struct Growth {
    pub(crate) sizes: Vec<SizedBackups>,
}

/// Fills a cluster step by step, and has each contender back it up at each step.
pub(crate) async fn measure(
    env: &BenchEnv,
    loads: &[Load],
    contenders: &[Contender],
    rounds: u16,
) -> anyhow::Result<Growth> {
    let (mut sizes, mut existing) = (Vec::new(), 0);
    for &load in loads {
        existing = fill::fill(&env.client, load, existing).await?;
        print_line(format_args!("{existing} objects"));
        let backups = backup::rounds(env, load.len(), contenders, rounds).await?;
        sizes.push(SizedBackups { load, backups });
    }
    Ok(Growth { sizes })
}
