// Asks @cloud-copilot/iam-simulate about requests. In (stdin): a JSON list of {action, resource, context,
// role, account, statements}. Out: a JSON list of "Allowed", "ImplicitlyDenied", ... or the simulator's errors.
import { readFileSync } from 'node:fs'
import { runSimulation } from '@cloud-copilot/iam-simulate'

const questions = JSON.parse(readFileSync(0, 'utf8'))
const answers = []
for (const q of questions) {
  const answer = await runSimulation(
    {
      request: {
        principal: q.role,
        action: q.action,
        resource: { resource: q.resource, accountId: q.account },
        contextVariables: q.context
      },
      identityPolicies: [{ name: 'role', policy: { Version: '2012-10-17', Statement: q.statements } }],
      serviceControlPolicies: [],
      resourceControlPolicies: []
    },
    {}
  )
  answers.push(answer.overallResult ?? JSON.stringify(answer.errors))
}
process.stdout.write(JSON.stringify(answers))
