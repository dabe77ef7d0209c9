// What the host sends with a submission, and how samples are numbered.
//
// It is a storage buffer though a uniform would do: Mesa's software driver compiles a shader anew
// whenever a uniform that decides a branch may have changed.

struct Submission {
    // Samples of this submission; those of its last tile may be fewer than 16.
    samples: u32,
    // Input = pixel * scale + offset.
    pixel_scale: f32,
    pixel_offset: f32,
    // For each tensor, then for the loss: 2^e and L of the fixed-point sums.
    factors: array<f32, 11>,
    limits: array<f32, 11>,
}

@group(0) @binding(0) var<storage, read> submission: Submission;

// A quad is four consecutive samples: a value of a quad is a vec4.
fn quad_count() -> u32 {
    return (submission.samples + 3u) / 4u;
}

// A tile is four quads, the unit of exact sums.
fn tile_count() -> u32 {
    return (submission.samples + 15u) / 16u;
}

// Where a quad's first feature lies in a (tiles, features, 4 quads) buffer; the next one lies four
// elements behind.
fn quad_start(quad: u32, features: u32) -> u32 {
    return (quad / 4u) * features * 4u + quad % 4u;
}

// What an invocation works on, of all quads and `places` places: the places of a tile follow each
// other, so that those who read the same values do so at about the same time.
struct Item {
    quad: u32,
    place: u32,
}

fn item_of(invocation: u32, places: u32) -> Item {
    let quads_and_places = invocation / 4u;
    return Item(4u * (quads_and_places / places) + invocation % 4u, quads_and_places % places);
}

// The end of a tile's quads; the last tile may have fewer than four.
fn quads_end(tile: u32) -> u32 {
    return min(4u * tile + 4u, quad_count());
}
