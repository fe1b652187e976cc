if merging then
  local LIMB = 10000000
  local function limbs(text)
    local negative = byte(text) == 45
    if negative then text = sub(text, 2) end
    local out = {}
    for j = #text, 1, -7 do out[#out + 1] = tonumber(sub(text, j > 7 and j - 6 or 1, j)) end
    while #out > 1 and out[#out] == 0 do out[#out] = nil end
    return out, negative
  end
  local function larger(a, b) -- of two magnitudes: 1, 0 or -1
    if #a ~= #b then return #a < #b and -1 or 1 end
    for j = #a, 1, -1 do if a[j] ~= b[j] then return a[j] < b[j] and -1 or 1 end end
    return 0
  end
  local function digits(number, negative)
    while #number > 1 and number[#number] == 0 do number[#number] = nil end
    local out = {string.format('%d', number[#number])}
    for j = #number - 1, 1, -1 do out[#out + 1] = string.format('%07d', number[j]) end
    local text = table.concat(out)
    if negative and text ~= '0' then text = '-' .. text end
    return text
  end
  local function plus(x, y)
    if #x <= 15 and #y <= 15 then return string.format('%.0f', tonumber(x) + tonumber(y) + 0) end -- below 2^53
    local a, na = limbs(x)
    local b, nb = limbs(y)
    local out = {}
    if na == nb then
      local carry = 0
      for j = 1, math.max(#a, #b) do
        local sum = (a[j] or 0) + (b[j] or 0) + carry
        carry = sum >= LIMB and 1 or 0
        out[j] = sum - carry * LIMB
      end
      if carry == 1 then out[#out + 1] = 1 end
      return digits(out, na)
    end
    if larger(a, b) < 0 then a, b, na = b, a, nb end
    local borrow = 0
    for j = 1, #a do
      local rest = a[j] - (b[j] or 0) - borrow
      borrow = rest < 0 and 1 or 0
      out[j] = rest + borrow * LIMB
    end
    return digits(out, na)
  end
  local function compare(x, y)
    if x == y then return 0 end
    local a, na = limbs(x)
    local b, nb = limbs(y)
    if na ~= nb then return na and -1 or 1 end
    return na and -larger(a, b) or larger(a, b)
  end
  -- A Decimal is its own text in Python: an optional sign, digits with or without a point, an exponent.
  local function aligned(x, y) -- both as digits with signs, of one exponent; nil where that is too long, or no such text
    local parts = {}
    for j, text in ipairs({x, y}) do
      local sign, whole, rest, power = string.match(text, '^(-?)(%d*)%.?(%d*)E?([+-]?%d*)$')
      if not sign or whole .. rest == '' then return nil end
      parts[j] = {sign, whole .. rest, (tonumber(power) or 0) - #rest}
    end
    local lowest, out = math.min(parts[1][3], parts[2][3]), {}
    for j = 1, 2 do
      local sign, text, power = unpack(parts[j])
      if power - lowest + #text > 4000 then return nil end
      text = string.gsub(text .. string.rep('0', power - lowest), '^0+', '')
      out[j] = text == '' and '0' or sign .. text
    end
    return out[1], out[2], lowest, parts[1][1] == '-' and parts[2][1] == '-'
  end
  local function decimal_plus(x, y)
    local a, b, power, negative = aligned(x, y)
    if not a then return nil end
    local text = plus(a, b)
    if byte(text) == 45 then text, negative = sub(text, 2), true elseif text ~= '0' then negative = false end
    local left = power + #text
    local point = (power <= 0 and left > -6) and left or 1
    local out
    if point <= 0 then out = '0.' .. string.rep('0', -point) .. text
    elseif point >= #text then out = text .. string.rep('0', point - #text)
    else out = sub(text, 1, point) .. '.' .. sub(text, point + 1) end
    if left ~= point then out = out .. string.format('E%+d', left - point) end
    return (negative and '-' or '') .. out
  end
  local function decimal_compare(x, y)
    local a, b = aligned(x, y)
    return a and compare(a, b)
  end
  local function bytewise(a, b)
    for m = 1, math.min(#a, #b) do
      local x, y = byte(a, m), byte(b, m)
      if x ~= y then return x < y and -1 or 1 end
    end
    return #a == #b and 0 or (#a < #b and -1 or 1)
  end
  local function member(value, element, adding)
    if #value > 65536 then return nil end
    local place, count = 2, 0
    while place <= #value do
      local size = from('>I4', value, place)
      local order = bytewise(sub(value, place + 4, place + 3 + size), element)
      if order == 0 then
        if adding then return value end
        return sub(value, 1, place - 1) .. sub(value, place + 4 + size)
      elseif order > 0 then
        break
      end
      place, count = place + 4 + size, count + 1
      if count > 2000 then return nil end
    end
    if not adding then return value end
    return sub(value, 1, place - 1) .. pack('>I4', #element) .. element .. sub(value, place)
  end
  -- One operation: the value after it, or nil where it has to be computed outside, be it because it takes too long here,
  -- because Lua has no such values, or because it has to be refused with a reason.
  local function apply(value, kind, operand, floor, ceiling)
    if kind == 'l' then return operand end
    if kind == 'p' then
      if value and (byte(value) ~= 108 or #value > 262144) then return nil end
      return (value or 'l') .. pack('>I4', #operand) .. operand
    end
    if kind == 's' or kind == 'r' then
      if value and byte(value) ~= 115 then return nil end
      return member(value or 's', operand, kind == 's')
    end
    -- What is left compares and adds numbers: two ints, or two Decimals.
    local tag = byte(operand)
    if (tag ~= 105 and tag ~= 100) or (value and byte(value) ~= tag) then return nil end
    local sum, order = plus, compare
    if tag == 100 then sum, order = decimal_plus, decimal_compare end
    if kind == 'a' then
      local amount = sub(operand, 2)
      local total = value and sum(sub(value, 2), amount) or (not value and amount)
      local way = order(amount, '0')
      if not total or not way or #total > 3999 then return nil end
      local bound = (way < 0 and floor) or (way > 0 and ceiling)
      if bound then
        local beyond = order(total, sub(bound, 2))
        if not beyond or beyond == way then return nil end
      end
      return sub(operand, 1, 1) .. total
    end
    if not value then return operand end
    local way = order(sub(operand, 2), sub(value, 2))
    if not way then return nil end
    if (kind == '>' and way > 0) or (kind == '<' and way < 0) then return operand end
    return value
  end
  local function every(value, steps)
    local place = 1
    while place <= #steps do
      local kind, size = sub(steps, place, place), from('>I4', steps, place + 1)
      local operand, bounds = sub(steps, place + 5, place + 4 + size), {}
      place = place + 5 + size
      for j = 1, 2 do
        local length = from('>I4', steps, place)
        if length > 0 then bounds[j] = sub(steps, place + 4, place + 2 + length) else length = 1 end
        place = place + 3 + length
      end
      value = apply(value, kind, operand, bounds[1], bounds[2])
      if not value then return nil end
    end
    return value
  end
  local outside
  after, merged = {}, {}
  local place = g + 1
  for i = 1, rows do
    local operation = byte(plan, 18 * i - 16)
    if operation ~= NONE then place = place + 1 end
    if operation == MERGE or operation == COMPUTED then
      local k, e = A[f + i], r[f + i - 1]
      local value
      local flags = e and byte(e, 17) or 1
      if cleared and cleared[k] then flags = 1 end
      if flags % 2 == 0 then
        local name = flags % 4 >= 2 and pack('>I4', #k) .. k .. sub(e, 1, 8)
        if name then value = kept[name] or call('HGET', KEYS[7], name)
        else value = sub(e, flags % 8 >= 4 and 26 or 18) end
      end
      local stamp, argument, done = value and sub(e, 1, 16) or string.rep('\0', 16), A[place]
      if operation == MERGE then
        done = every(value, argument)
      elseif sub(argument, 1, 16) == stamp then
        done = sub(argument, 17)
      end
      if done then
        if done ~= value then after[i] = done end
        merged[#merged + 1] = {i, done ~= value and 1 or 0, value and 1 or 0, value or ''}
      else
        outside = outside or {}
        outside[#outside + 1] = {i, stamp, value and 1 or 0, value or ''}
      end
    end
  end
  if outside then return {7, outside} end
end
