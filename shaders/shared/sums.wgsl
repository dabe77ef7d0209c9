// Partial gradients into the step's words: exact fixed-point sums and exact maxima.

// False replaces the exact sums by plain ones of f32 and leaves out the maxima; for benchmarks.
override EXACT: bool;

// The words that workers reduce, as the host's model::layout::Bucket documents them.
@group(0) @binding(9) var<storage, read_write> words: array<atomic<u32>>;

// How the partials of a scale become integers.
struct Range {
    factor: f32,
    limit: f32,
}

fn range_of(scale: u32) -> Range {
    return Range(submission.factors[scale], submission.limits[scale]);
}

// round(clamp(p * 2^e, -L, L)), ties to even.
fn quantize(partial: vec4f, range: Range) -> vec4i {
    let limit = vec4f(range.limit);
    return vec4i(round(clamp(partial * range.factor, -limit, limit)));
}

// Running sums of one invocation: the bits of four i32, or of four f32 where not EXACT.
fn add_partial(sum: vec4u, partial: vec4f, range: Range) -> vec4u {
    if EXACT {
        return sum + bitcast<vec4u>(quantize(partial, range));
    }
    return bitcast<vec4u>(bitcast<vec4f>(sum) + partial);
}

// |p| as bits: ordered like the numbers, with infinity and NaN above them all.
fn magnitude(partial: vec4f) -> vec4u {
    return bitcast<vec4u>(partial) & vec4u(0x7fffffffu);
}

// Adds a running sum to a word. Integer sums may come from many invocations in any order; a plain
// sum must come from one alone.
fn add_to_word(word: u32, sum: u32) {
    if EXACT {
        atomicAdd(&words[word], sum);
    } else {
        let before = bitcast<f32>(atomicLoad(&words[word]));
        atomicStore(&words[word], bitcast<u32>(before + bitcast<f32>(sum)));
    }
}

// The load spares most invocations the contended operation.
fn raise_word(word: u32, magnitude: u32) {
    if EXACT && magnitude > atomicLoad(&words[word]) {
        atomicMax(&words[word], magnitude);
    }
}
