// The last layer, softmax, cross-entropy and its gradient.
//
// input (tiles, 84, 16), weights (10, 84), bias (10), labels
// -> logits (tiles, 12, 16), d_logits (tiles, 12, 16) = softmax - onehot, and the step's
// statistics: loss in fixed point, right answers, samples, largest loss.
//
// An invocation computes one sample. The ten classes are padded to twelve: rows 10 and 11 of
// d_logits are 0. So are the gradients of the samples that fill the last quad.

override INPUTS: u32;
override WEIGHT: u32;
override BIAS: u32;
// Words of the statistics.
override LOSS: u32;
override RIGHT: u32;
override SAMPLES: u32;
override LOSS_MAXIMUM: u32;
override LANES: u32;

@group(0) @binding(1) var<storage, read> parameters: array<f32>;
@group(0) @binding(2) var<storage, read> input: array<f32>;
@group(0) @binding(3) var<storage, read> labels: array<u32>;
@group(0) @binding(4) var<storage, read_write> logits: array<f32>;
@group(0) @binding(5) var<storage, read_write> d_logits: array<f32>;
@group(0) @binding(7) var<storage, read> samples: array<u32>;

const CLASSES = 10u;
// As many as fill vec4s.
const ROWS = 12u;
// Index of the loss among the scales.
const LOSS_SCALE = 10u;

override WEIGHTS: u32 = INPUTS * 3u;

// (inputs, 3) of four classes each.
var<workgroup> weights: array<vec4f, WEIGHTS>;

@compute @workgroup_size(LANES)
fn loss_head(
    @builtin(workgroup_id) group: vec3u,
    @builtin(local_invocation_index) lane: u32,
) {
    for (var i = lane; i < WEIGHTS; i += LANES) {
        let first = 4u * (i % 3u);
        let column = WEIGHT + i / 3u;
        // Rows 10 and 11 of the last vec4 are never looked at.
        weights[i] = vec4f(
            parameters[column + first * INPUTS],
            parameters[column + (first + 1u) * INPUTS],
            parameters[column + min(first + 2u, 9u) * INPUTS],
            parameters[column + min(first + 3u, 9u) * INPUTS],
        );
    }
    workgroupBarrier();

    let sample = group.x * LANES + lane;
    if sample >= 4u * quad_count() {
        return;
    }
    let tile = sample / 16u;
    let place = sample % 16u;

    var z = Classes(
        vec4f(parameters[BIAS], parameters[BIAS + 1u], parameters[BIAS + 2u], parameters[BIAS + 3u]),
        vec4f(
            parameters[BIAS + 4u],
            parameters[BIAS + 5u],
            parameters[BIAS + 6u],
            parameters[BIAS + 7u],
        ),
        vec4f(parameters[BIAS + 8u], parameters[BIAS + 9u], 0.0, 0.0),
    );
    for (var i = 0u; i < INPUTS; i++) {
        let x = input[(tile * INPUTS + i) * 16u + place];
        z.a += weights[3u * i] * x;
        z.b += weights[3u * i + 1u] * x;
        z.c += weights[3u * i + 2u] * x;
    }
    let z_rows = rows(z);
    for (var row = 0u; row < ROWS; row++) {
        logits[(tile * ROWS + row) * 16u + place] = z_rows[row];
    }

    // The largest logit becomes 0, so that no exponential overflows.
    let best = max(largest(z.a), max(largest(z.b), max(z.c.x, z.c.y)));
    z.a -= best;
    z.b -= best;
    z.c -= best;
    let e = Classes(exp(z.a), exp(z.b), vec4f(exp(z.c.xy), 0.0, 0.0));
    let total = dot(e.a, vec4f(1.0)) + dot(e.b, vec4f(1.0)) + (e.c.x + e.c.y);

    let label = labels[samples[sample]];
    let of_label = one_hot(label);
    // A select, not a product: an infinite logit of another class must not become a NaN here.
    let z_label = dot(select(vec4f(0.0), z.a, of_label.a > vec4f(0.0)), vec4f(1.0))
        + dot(select(vec4f(0.0), z.b, of_label.b > vec4f(0.0)), vec4f(1.0))
        + dot(select(vec4f(0.0), z.c, of_label.c > vec4f(0.0)), vec4f(1.0));
    let counts = sample < submission.samples;
    let d_rows = rows(Classes(
        select(vec4f(0.0), e.a / total - of_label.a, counts),
        select(vec4f(0.0), e.b / total - of_label.b, counts),
        select(vec4f(0.0), e.c / total - of_label.c, counts),
    ));
    for (var row = 0u; row < ROWS; row++) {
        d_logits[(tile * ROWS + row) * 16u + place] = d_rows[row];
    }
    if counts {
        let loss = log(total) - z_label;
        add_to_word(LOSS, add_partial(vec4u(0u), vec4f(loss), LOSS_SCALE).x);
        raise_word(LOSS_MAXIMUM, magnitude(vec4f(loss)).x);
        atomicAdd(&words[RIGHT], u32(first_zero(z) == label));
        atomicAdd(&words[SAMPLES], 1u);
    }
}

// A value for each class; the last two components belong to none.
struct Classes {
    a: vec4f,
    b: vec4f,
    c: vec4f,
}

fn rows(x: Classes) -> array<f32, ROWS> {
    return array<f32, ROWS>(
        x.a.x, x.a.y, x.a.z, x.a.w, x.b.x, x.b.y, x.b.z, x.b.w, x.c.x, x.c.y, x.c.z, x.c.w,
    );
}

fn largest(x: vec4f) -> f32 {
    return max(max(x.x, x.y), max(x.z, x.w));
}

fn one_hot(label: u32) -> Classes {
    let number = vec4u(0u, 1u, 2u, 3u);
    return Classes(
        vec4f(number == vec4u(label)),
        vec4f(number + 4u == vec4u(label)),
        vec4f(number + 8u == vec4u(label)),
    );
}

// The answer: the first class whose shifted logit is 0; the largest one's is.
fn first_zero(z: Classes) -> u32 {
    let number = vec4u(0u, 1u, 2u, 3u);
    let a = select(vec4u(ROWS), number, z.a == vec4f(0.0));
    let b = select(vec4u(ROWS), number + 4u, z.b == vec4f(0.0));
    let c = select(vec4u(ROWS), number + 8u, z.c == vec4f(0.0));
    let least = min(a, min(b, c));
    return min(min(least.x, least.y), min(least.z, least.w));
}
