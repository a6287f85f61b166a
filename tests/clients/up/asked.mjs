// What the tests ask the demo model, which knows facts of its prompt by heart and little else: whatever it is made to
// write, as JSON or as a call, has to be short by its schema.
import { z } from 'zod';

export const question = 'The code of nerita is 271828. What is the code of nerita?';
export const answer = '271828';

export const Report = z.object({
  code: z.int().min(1).max(999999),
  mood: z.enum(['good', 'bad']),
  tags: z.array(z.enum(['red', 'green', 'blue'])).min(1).max(3),
});

export const Weather = z.object({ city: z.enum(['Oslo', 'Quito']), days: z.int().min(1).max(9) });
