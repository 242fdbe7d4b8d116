// Runs NAME.wasm: const program = await load(); const outputs = program.run(inputs, sizes);

const about = /*ABOUT*/;

export async function load(source) {
  source ??= new URL("./NAME.wasm", import.meta.url);
  if (typeof source === "string" || source instanceof URL) {
    const url = new URL(source, import.meta.url);
    if (url.protocol === "file:" && typeof process !== "undefined") {
      const { readFile } = await import("node:fs/promises");
      source = await readFile(url);
    } else {
      source = await fetch(url);
    }
  }
  if (typeof Response !== "undefined" && source instanceof Response) {
    if (!source.ok) throw new Error(`NAME.wasm: ${source.status} ${source.statusText}`);
    source = await source.arrayBuffer();
  }
  const { instance } = await WebAssembly.instantiate(source, {});
  return new Program(instance.exports);
}

class Program {
  #exports;
  about = about;

  constructor(exports) {
    this.#exports = exports;
  }

  run(inputs, sizes = {}) {
    const { NAME_run, NAME_workspace, NAME_shape, __heap_base } = this.#exports;
    const stated = this.#sizes(inputs, sizes);
    let top = __heap_base.value;
    const take = (bytes) => {
      const at = top;
      top = Math.ceil((top + bytes) / 64) * 64;
      this.#grow(top);
      return at;
    };
    const sizesAt = take(8 * Math.max(stated.length, 1));
    this.#array("BigInt64Array", sizesAt, stated.length).set(stated);
    const needed = NAME_workspace(sizesAt, 1);
    if (needed < 0n) this.#refuse(-needed);
    const lists = take(4 * (about.inputs.length + about.outputs.length + 1));
    const places = [];
    for (const own of about.inputs) {
      const given = this.#given(own, inputs);
      const count = own.shape.reduce((n, d) => n * this.#length(d, stated), 1);
      if (given.length !== count) {
        throw new Error(`${own.name}: expected ${count} elements (${own.shape.join(" x ")}), got ${given.length}`);
      }
      const at = take(given.byteLength);
      this.#array(own.type, at, count).set(given);
      places.push(at);
    }
    const outputs = about.outputs.map((own, k) => {
      const shapeAt = take(8 * Math.max(own.shape.length, 1));
      this.#refuse(NAME_shape(k, sizesAt, shapeAt));
      const shape = [...this.#array("BigInt64Array", shapeAt, own.shape.length)].map(Number);
      const count = shape.reduce((n, d) => n * d, 1);
      const at = take(count * globalThis[own.type].BYTES_PER_ELEMENT);
      places.push(at);
      return { own, shape, count, at };
    });
    const workspace = take(Number(needed));
    this.#array("Uint32Array", lists, places.length).set(places);
    this.#refuse(NAME_run(lists, sizesAt, lists + 4 * about.inputs.length, workspace, 0));
    const found = {};
    for (const { own, shape, count, at } of outputs) {
      found[own.name] = { data: this.#array(own.type, at, count).slice(), shape };
    }
    return found;
  }

  #given(own, inputs) {
    const given = inputs[own.name];
    if (given === undefined) throw new Error(`${own.name}: no such input was given`);
    if (!(given instanceof globalThis[own.type])) {
      throw new Error(`${own.name}: expected a ${own.type} (${own.dtype})`);
    }
    return given;
  }

  // The integers of a run: those that are given, the others by the lengths of inputs.
  #sizes(inputs, sizes) {
    const known = { ...sizes };
    for (const name of Object.keys(known)) {
      if (!about.sizes.some((s) => s.name === name)) throw new Error(`${name}: there is no such size`);
    }
    for (const own of about.inputs) {
      const open = own.shape.filter((n) => typeof n === "string" && known[n] === undefined);
      if (open.length === 1 && about.sizes.some((s) => s.name === open[0])) {
        const rest = own.shape.reduce((n, d) => n * (d === open[0] ? 1 : typeof d === "string" ? known[d] : d), 1);
        const length = this.#given(own, inputs).length;
        if (rest > 0) known[open[0]] = Math.floor(length / rest);
      }
    }
    return about.sizes.map(({ name }) => {
      if (!Number.isSafeInteger(known[name])) throw new Error(`${name}: give this size, as an integer`);
      return BigInt(known[name]);
    });
  }

  // A length: a number, a size, or an expression of sizes such as 2*n + 1.
  #length(d, stated) {
    if (typeof d === "number") return d;
    const values = Object.fromEntries(about.sizes.map(({ name }, j) => [name, Number(stated[j])]));
    return evaluate(d, values);
  }

  #array(type, at, count) {
    return new globalThis[type](this.#exports.memory.buffer, at, count);
  }

  #grow(top) {
    const { memory } = this.#exports;
    const missing = top - memory.buffer.byteLength;
    if (missing > 0) {
      try {
        memory.grow(Math.ceil(missing / 65536));
      } catch {
        throw new Error(`NAME: no memory for ${top} bytes`);
      }
    }
  }

  #refuse(code) {
    if (!code) return;
    let at = this.#exports.NAME_message(Number(code));
    const bytes = new Uint8Array(this.#exports.memory.buffer);
    const end = bytes.indexOf(0, at);
    throw new Error(new TextDecoder().decode(bytes.slice(at, end)));
  }
}

// A sum of products of numbers, names and quotients (a//b), as sizes are written.
function evaluate(text, values) {
  const tokens = text.match(/\/\/|[-+*()]|\w+/g);
  let at = 0;
  const atom = () => {
    const token = tokens[at++];
    if (token === "(") {
      const value = sum();
      at++;
      return value;
    }
    if (token === "-") return -atom();
    return /^\d/.test(token) ? Number(token) : values[token];
  };
  const product = () => {
    let value = atom();
    while (tokens[at] === "*" || tokens[at] === "//") {
      value = tokens[at++] === "*" ? value * atom() : Math.floor(value / Math.max(atom(), 1));
    }
    return value;
  };
  const sum = () => {
    let value = product();
    while (tokens[at] === "+" || tokens[at] === "-") value += tokens[at++] === "+" ? product() : -product();
    return value;
  };
  return sum();
}
