// Random JSON schemas whose values are short, from a seed: what docs/api.md says is served of the language.
export function generator(seed) {
  let state = seed * 2654435761 + 1013904223;
  const random = () => {
    // Marsaglia's xorshift of 32 bits.
    state ^= state << 13;
    state ^= state >>> 17;
    state ^= state << 5;
    return (state >>> 0) / 2 ** 32;
  };
  for (let i = 0; i < 8; ++i) random();
  const below = (n) => Math.floor(random() * n);
  const pick = (list) => list[below(list.length)];
  const chance = (p) => random() < p;
  const words = ['red', 'kälte', 'x"y', 'a b', 'true', '7', '', 'line\nend', 'ø\\', 'last'];
  const names = ['id', 'name', 'tags', 'size', 'näme', 'is ok', 'a.b', '$x', 'list', 'next'];

  const string = () =>
    pick([
      () => ({ type: 'string', maxLength: 1 + below(8) }),
      () => ({ type: 'string', minLength: 2, maxLength: 2 + below(6) }),
      () => ({ type: 'string', pattern: pick(['^[a-f]{2,4}$', '^(no|yes)[0-9]?$', '^[A-Z]\\d{2}-\\d$', '^ü?x+$']).replace('x+', 'x{1,4}') }),
      () => ({ type: 'string', format: pick(['date', 'time', 'date-time', 'uuid', 'ipv4']) }),
      () => ({ enum: [pick(words), pick(words), 3].filter((word, i, all) => all.indexOf(word) === i) }),
      () => ({ const: pick(words) }),
    ])();
  const integer = () => {
    const low = below(2000) - 1000;
    return pick([
      () => ({ type: 'integer', minimum: low, maximum: low + below(5000) }),
      () => ({ type: 'integer', exclusiveMinimum: low, exclusiveMaximum: low + 2 + below(90) }),
      () => ({ enum: [low, low + 7, -0.5, 1e21] }),
    ])();
  };
  const object = (depth) => {
    const properties = {};
    for (let i = below(4) + 1; i > 0; --i) properties[pick(names)] = any(depth - 1);
    const required = Object.keys(properties).filter(() => chance(0.7));
    const schema = { type: 'object', properties, additionalProperties: false };
    if (required.length > 0) schema.required = required;
    if (chance(0.2)) schema.title = 'passed over';
    return schema;
  };
  const array = (depth) => {
    const minItems = below(3);
    const schema = { type: 'array', items: any(depth - 1), minItems, maxItems: minItems + below(3) };
    if (chance(0.3)) schema.prefixItems = [any(depth - 1)];
    if (schema.prefixItems && schema.maxItems === 0) schema.maxItems = 1;
    return schema;
  };
  const any = (depth) => {
    const leaves = [string, string, integer, integer, () => ({ type: 'boolean' }), () => ({ type: 'null' })];
    if (depth <= 0) return pick(leaves)();
    return pick([
      ...leaves,
      () => object(depth),
      () => object(depth),
      () => array(depth),
      () => ({ anyOf: [any(depth - 1), any(depth - 1)] }),
      () => ({ $ref: '#/$defs/shared' }),
    ])();
  };

  return () => {
    const schema = object(3);
    schema.$defs = { shared: pick([string, integer, () => object(0)])() };
    return schema;
  };
}
