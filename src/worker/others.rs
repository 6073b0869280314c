//! What servers of another kind would call the pages of a layout, so that an explanation can tell
//! "nobody has it" from "you are another kind of server".

use crate::engine::Terms;
use crate::keys::{Geometry, Naming, PageFormat, Scheme, Shard, Template};
use crate::layout::{Layout, Part};

/// World sizes that pages of another deployment are looked for under.
const WORLDS: [u32; 5] = [1, 2, 4, 8, 16];

/// Under what other identity a missing page was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Other {
    /// A tensor-parallel group of another size.
    World(u32),
    /// Sealed pages where ours are raw, or raw ones where ours are sealed.
    PageFormat,
}

/// The names that the sharded pages of a layout have on servers with another world size or page
/// format, each with its layer group's id.
pub(super) fn others(
    terms: &Terms,
    naming: &Naming,
    layout: &Layout,
) -> Vec<(u32, Other, Template)> {
    let mut all = Vec::new();
    for group in layout.groups() {
        let regions = group.regions(Part::Sharded);
        let id = group.group().id;
        let mut add = |other, naming: &Naming, world: u32| {
            // Where heads do not divide evenly there is no such server.
            let sizes: Option<Vec<u64>> = regions
                .iter()
                .map(|region| {
                    let whole = region.size.checked_mul(u64::from(terms.world))?;
                    let world = u64::from(world);
                    whole.is_multiple_of(world).then_some(whole / world)
                })
                .collect();
            let Some(sizes) = sizes.filter(|sizes| !sizes.is_empty()) else {
                return;
            };
            let geometry = Geometry {
                number_format: &group.group().number_format,
                layout_tag: &group.group().layout_tag,
                layer_group: id,
                window: group.group().window,
                layer_ids: &group.group().layer_ids,
                region_sizes: &sizes,
            };
            if let Ok(template) = Template::page(naming, &geometry, Shard::Rank { world, rank: 0 })
            {
                all.push((id, other, template));
            }
        };
        for world in WORLDS.into_iter().filter(|&world| world != terms.world) {
            add(Other::World(world), naming, world);
        }
        if naming.scheme == Scheme::Kvb1 {
            let page_format = match naming.page_format {
                PageFormat::Sealed => PageFormat::Raw,
                PageFormat::Raw => PageFormat::Sealed,
            };
            let naming = Naming {
                page_format,
                ..naming.clone()
            };
            add(Other::PageFormat, &naming, terms.world);
        }
    }
    all
}
