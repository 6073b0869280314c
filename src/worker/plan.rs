//! Which pages a block has: one or two per layer group, each with its size and its keys.

use std::sync::Arc;

use super::others::{Other, others};
use crate::engine::Terms;
use crate::error::{Result, bail};
use crate::keys::{Geometry, Naming, PageFormat, Shard, Template};
use crate::layout::{GroupLayout, Layout, Part};
use crate::link::GroupInfo;
use crate::page::FOOTER_BYTES;
use crate::plant::{self, Bug};

/// One kind of page: the sharded or the replicated part of one layer group.
#[derive(Debug, Clone)]
pub(super) struct PageKind {
    /// Position of the group in the layout.
    pub group: u16,
    pub part: Part,
    /// Bytes of the page without the seal.
    pub payload: u64,
    /// Names this rank's page.
    pub own: Template,
    /// This rank publishes it: its own shard, and the replicated part on rank 0.
    pub writes: bool,
}

/// Whose page a key of a lookup names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Owner {
    /// The engine's id of the layer group.
    pub group: u32,
    /// The rank whose shard it is; `None` for what all ranks share.
    pub rank: Option<u32>,
}

/// The pages of a block on the registered layout.
#[derive(Debug)]
pub(super) struct PagePlan {
    pub kinds: Vec<PageKind>,
    /// Keys of a block that must all exist for a hit: every group, every shard.
    pub lookup: Vec<Template>,
    /// Whose page each of them is.
    pub owners: Vec<Owner>,
    /// What other servers would call the pages, for explanations: by layer group.
    pub others: Vec<(u32, Other, Template)>,
    pub groups: Arc<[GroupInfo]>,
    sealed: bool,
}

impl PagePlan {
    pub fn new(
        terms: &Terms,
        naming: &Naming,
        wanted_format: &str,
        layout: &Layout,
    ) -> Result<Self> {
        let mut plan = Self {
            kinds: Vec::new(),
            lookup: Vec::new(),
            owners: Vec::new(),
            others: others(terms, naming, layout),
            groups: layout
                .groups()
                .iter()
                .map(|group| GroupInfo {
                    id: group.group().id,
                    slots: group.slots(),
                })
                .collect(),
            sealed: naming.page_format == PageFormat::Sealed,
        };
        for (position, group) in layout.groups().iter().enumerate() {
            let Ok(position) = u16::try_from(position) else {
                bail!(
                    InvalidArgument,
                    "layout: more than {} layer groups",
                    u16::MAX
                );
            };
            let format = &group.group().number_format;
            if !wanted_format.is_empty() && wanted_format != format {
                bail!(
                    ConfigInvalid,
                    "kvbridge.number_format = \"{wanted_format}\", but layer group {} holds \"{format}\"",
                    group.group().id
                );
            }
            for part in [Part::Sharded, Part::Replicated] {
                plan.add(terms, naming, position, group, part)?;
            }
        }
        Ok(plan)
    }

    fn add(
        &mut self,
        terms: &Terms,
        naming: &Naming,
        position: u16,
        group: &GroupLayout,
        part: Part,
    ) -> Result<()> {
        let regions = group.regions(part);
        if regions.is_empty() {
            return Ok(());
        }
        let sizes: Vec<u64> = regions.iter().map(|region| region.size).collect();
        let geometry = Geometry {
            number_format: &group.group().number_format,
            layout_tag: &group.group().layout_tag,
            layer_group: group.group().id,
            window: group.group().window,
            layer_ids: &group.group().layer_ids,
            region_sizes: &sizes,
        };
        let owner = |rank| Owner {
            group: group.group().id,
            rank,
        };
        let own = match part {
            Part::Sharded => {
                let left_out = u32::from(plant::is(Bug::ShardLeftOut) && terms.world > 1);
                for rank in 0..terms.world - left_out {
                    self.owners.push(owner(Some(rank)));
                    let shard = Shard::Rank {
                        world: terms.world,
                        rank,
                    };
                    self.lookup.push(Template::page(naming, &geometry, shard)?);
                }
                Template::page(
                    naming,
                    &geometry,
                    Shard::Rank {
                        world: terms.world,
                        rank: terms.rank,
                    },
                )?
            }
            Part::Replicated => {
                let template = Template::page(naming, &geometry, Shard::Replicated)?;
                self.owners.push(owner(None));
                self.lookup.push(template.clone());
                template
            }
        };
        self.kinds.push(PageKind {
            group: position,
            part,
            payload: group.page_bytes(part),
            own,
            writes: part == Part::Sharded || terms.rank == 0,
        });
        Ok(())
    }

    /// Bytes of the stored object of a page of the kind at this position.
    pub fn object_bytes(&self, kind: usize) -> u64 {
        let payload = self.kinds.get(kind).map_or(0, |kind| kind.payload);
        payload + self.seal_bytes() as u64
    }

    /// Bytes behind the payload of a stored object.
    pub fn seal_bytes(&self) -> usize {
        if self.sealed { FOOTER_BYTES } else { 0 }
    }

    pub fn sealed(&self) -> bool {
        self.sealed
    }

    /// Kinds that this rank publishes.
    pub fn written(&self) -> usize {
        self.kinds.iter().filter(|kind| kind.writes).count()
    }

    /// The largest payload of any kind.
    pub fn largest_payload(&self) -> u64 {
        self.kinds
            .iter()
            .map(|kind| kind.payload)
            .max()
            .unwrap_or(0)
    }

    /// True when `other` has the same pages under the same names; addresses and counts may differ.
    pub fn same_pages(&self, other: &Self) -> bool {
        self.lookup == other.lookup
            && self.kinds.len() == other.kinds.len()
            && self
                .kinds
                .iter()
                .zip(&other.kinds)
                .all(|(one, two)| one.own == two.own && one.payload == two.payload)
            && self
                .groups
                .iter()
                .map(|group| group.id)
                .eq(other.groups.iter().map(|group| group.id))
    }
}
